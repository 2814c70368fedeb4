import pytest

from profiling._hlo.module import Alias, Attributes, Frame, Metadata
from tests.profiling.hlo_files import STEP, content, entry, parse


def test_lookup_by_name() -> None:
    module = parse(content(STEP))
    assert module.computation("%add.clone") is module.computations[0]
    reduced = module.instruction("all-reduce.2")
    assert reduced.operands == (module.instruction("%dot.3"),)
    assert reduced.called == ("add.2.clone",)
    assert module.entry.root is module.instruction("tuple.3")
    with pytest.raises(KeyError, match="no instruction 'nope'"):
        module.instruction("nope")
    with pytest.raises(KeyError, match="no computation 'nope'"):
        module.computation("nope")


def test_equal_things_are_one_object() -> None:
    module = parse(content(STEP))
    a, b = module.instruction("all-gather.1"), module.instruction("all-gather.2")
    assert a.shape is b.shape
    assert module.instruction("x.3").attributes is module.instruction("x.5").attributes


def test_head_of_a_module() -> None:
    module = parse(content(STEP))
    assert module.name == "jit_step"
    assert module.is_scheduled
    assert (module.num_partitions, module.num_replicas) == (8, 1)
    assert module.aliases == (Alias((0,), 0), Alias((1,), 1))
    assert [p.name for p in module.entry.parameters] == ["param", "param.2", "param.1"]
    assert module.entry.parameters[1].attributes.sharding == (
        "{devices=[2,4]<=[4,2]T(1,0)}"
    )


def test_call_stacks() -> None:
    module = parse(content(STEP))
    dot = module.instruction("dot.8").metadata
    assert (dot.op_name, dot.source_line) == ("jit(step)/jvp()/dot_general", 7)
    file = "/home/user/j.py"
    assert dot.source_file == file
    assert [(f.function, f.line) for f in module.stack(dot)] == [
        ("loss", 7),
        ("step", 9),
        ("<module>", 13),
    ]
    assert module.frames[0] == Frame(file, "<module>", 13, -1)
    assert module.stack(Metadata()) == ()


def test_users_and_bytes() -> None:
    module = entry(
        "a = f32[4] parameter(0)\n"
        "b = s32[] constant(-7)\n"
        "c = f32[4] add(a, a)\n"
        "ROOT d = (f32[4], f32[4]) tuple(c, a)"
    )
    a, b, c, d = module.entry.instructions
    assert module.entry.users() == {a: [c, d], c: [d]}
    assert (d.num_operand_bytes, b.constant, c.constant) == (32, -7, None)


def test_reprs_are_one_line() -> None:
    module = entry("a = f32[4] parameter(0)\nROOT c = f32[4] add(a, a)")
    assert repr(module.entry.root) == "Instruction(c = f32[4] add(a, a))"
    assert repr(module.entry) == "Computation(e, 2 instructions)"
    assert repr(module) == ("Module(m, 2 instructions in 1 computations, 1 partitions)")


def test_a_stack_that_points_at_itself_ends() -> None:
    module = parse(content(STEP))
    looped = type(module)(
        "m", module.computations, module.entry, frames=(Frame("f", "g", 1, 0),)
    )
    assert len(looped.stack(Metadata(frame=0))) == 2


def test_attributes_default_to_nothing() -> None:
    module = entry("ROOT a = f32[] parameter(0)")
    assert module.entry.root.attributes == Attributes(parameter=0)
