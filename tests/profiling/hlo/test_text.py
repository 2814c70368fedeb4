import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxlib import _hlo

from profiling._collectives.ops import collective_ops
from profiling._hlo.binary import read_binary
from profiling._hlo.module import Instruction, Module
from tests.profiling.hlo_files import STEP, TEXTS, content, damaged, parse

MANY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def said(instruction: Instruction, module: Module) -> tuple[object, ...]:
    """What an instruction says; frames as places, as their numbers may differ."""
    metadata = instruction.metadata
    stack = [(f.file, f.function, f.line) for f in module.stack(metadata)]
    return (
        instruction.name,
        instruction.opcode,
        instruction.shape,
        [o.name for o in instruction.operands],
        instruction.called,
        dataclasses.replace(metadata, frame=-1),
        stack,
        instruction.attributes,
    )


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_equals_jaxlibs_reader(path) -> None:
    """jaxlib reads the text, we read its proto; everything must be the same."""
    ours = parse(content(path))
    data = _hlo.hlo_module_from_text(content(path).decode())
    theirs = read_binary(data.as_serialized_hlo_module_proto(), source="proto")
    assert (ours.name, ours.is_scheduled) == (theirs.name, theirs.is_scheduled)
    assert (ours.aliases, ours.donors) == (theirs.aliases, theirs.donors)
    assert ours.num_partitions == theirs.num_partitions
    assert ours.entry.name == theirs.entry.name
    for computation in ours.computations:
        other = theirs.computation(computation.name)
        assert other.root.name == computation.root.name
        pairs = zip(computation.instructions, other.instructions, strict=True)
        for a, b in pairs:
            if b.opcode.startswith("async-"):  # text writes `x-start` for a wrapped x
                assert (a.name, a.shape) == (b.name, b.shape)
            else:
                assert said(a, ours) == said(b, theirs)
    rows = [
        [(op.kind, op.form, op.groups.groups, op.wire_bytes, op.runs, op.is_async)]
        for module in (ours, theirs)
        for op in collective_ops(module)
    ]
    assert rows[: len(rows) // 2] == rows[len(rows) // 2 :]


def test_hand_written_text() -> None:
    module = parse(
        "// a comment\n"
        "HloModule m, replica_count=2\n"
        "\n"
        "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  ROOT s = f32[] add(f32[] a, f32[] b)\n}\n"
        "ENTRY e (x: f32[4]) -> f32[4] {\n"
        "  x = f32[4]{0} parameter(0)\n"
        "  y = s32[2,2] constant({ {1, 2},\n    {3, -4} })\n"
        "  r = f32[4] all-reduce(x), replica_groups={{0,1}},\n"
        '    to_apply=sum, metadata={op_name="a \\"b\\" // c" source_line=7}\n'
        "}\n"
    )
    root = module.entry.root
    assert (module.num_replicas, root.name, root.called) == (2, "r", ("sum",))
    assert root.metadata.op_name == 'a "b" // c'
    assert root.metadata.source_line == 7
    assert module.instruction("y").attributes.literal == (1, 2, 3, -4)
    assert [o.name for o in module.instruction("s").operands] == ["a", "b"]


GOOD = """HloModule m
ENTRY e {
  a = f32[4] parameter(0)
  ROOT b = f32[4] add(a, a)
}
"""


@pytest.mark.parametrize(
    ("old", "new", "where", "problem"),
    [
        (
            "HloModule m",
            "HloMadule m",
            "1:1",
            "'HloModule name, ...' is expected first",
        ),
        ("HloModule m", "HloModule m, num_partitions=x", "1:14", "positive number"),
        ("HloModule m", "HloModule m, x={1", "1:16", "'}' is missing after this"),
        ("ENTRY e {", "ENTRY e", "2:1", "a computation such as"),
        ("ENTRY e {", "e {", "5:2", "without an ENTRY computation"),
        ("a = f32", "a : f32", "3:3", "an instruction such as"),
        ("f32[4] par", "f99[4] par", "3:7", "no dtype 'f99'"),
        ("f32[4] par", "f32[4 par", "3:7", "a shape such as"),
        ("parameter(0)", "parameter(x)", "3:24", "a number is expected here, not 'x'"),
        ("parameter(0)", "parameter(0", "3:23", "this bracket is not closed"),
        ("add(a, a)", "add(a, c)", "4:23", "operand 'c' is not defined before"),
        ("add(a, a)", "add a, a", "4:18", "an opcode such as"),
        ("add(a, a)", "add(a, a), to_apply=f", "4:39", "'f' is called here"),
        ("add(a, a)", "add(a, a), x={1}}", "4:35", "this '}' closes nothing"),
        ("add(a, a)", "add(a, a) index=z", "4:35", "a number is expected here"),
        ("add(a, a)", 'add(a, a), y="', "4:32", "this string is not closed"),
        ("add(a, a)", "add(a, a), !", "4:28", "an attribute such as"),
        ("add(a, a)", "all-redoce(a)", "4:19", "'all-reduce' is meant"),
        ("add(a, a)", "copy(a), channel_id=1.5", "4:39", "a number is expected here"),
        ("add(a, a)", "copy(a), dimensions={x}", "4:39", "numbers are expected here"),
        ("add(a, a)", "copy(a), replica_groups={{0}", "4:43", "missing after this"),
        ("add(a, a)", "copy(a), replica_groups=[2,3]<=[4]", "4:43", "do not make"),
        ("add(a, a)", "copy(a), source_target_pairs={{0}}", "4:48", "pairs such as"),
        ("add(a, a)", "copy(a), slice={[0]}", "4:34", "slices such as"),
        ("add(a, a)", "copy(a), metadata={source_line=x}", "4:38", "is no number"),
        ("  ROOT b", "  ROOT a", "4:8", "a second instruction 'a'"),
        ("  a =", "  ROOT a =", "4:1", "a second ROOT, after 'a'"),
        ("add(a, a)\n}\n", "add(a, a)\n", "4:28", "ends inside computation 'e'"),
        ("add(a, a)\n}\n", "add(a, a)\n}\ne {\n", "6:1", "a second computation"),
        ("{\n  a", "{\n}\nf {\n  a", "3:1", "'e' has no instructions"),
    ],
)
def test_damage_is_shown_with_a_caret(old, new, where, problem) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(ValueError) as error:
        parse(text, source="a.txt")
    message = str(error.value)
    assert message.startswith(f"a.txt:{where}: "), message
    assert problem in message
    shown, caret = message.splitlines()[-2:]
    assert caret.strip() == "^"
    assert len(caret) <= len(shown) + 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD + GOOD.partition("\n")[2].replace("e {", "f {"), "a second ENTRY"),
        (GOOD.replace("m\n", 'm\nFileNames\n2 "f"\n'), "row 1 of this table"),
        ("", "'HloModule name, ...' is expected first"),
        (GOOD.encode().replace(b"b = f32", b"\xff = f32"), "byte 0xff is no UTF-8"),
    ],
)
def test_other_damage(text, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(text)


@MANY
@given(st.data())
def test_fuzzed_text_is_read_or_refused(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from((STEP, *TEXTS[3:5])))
    try:
        module = parse(damaged(data, content(path)), source="f.txt")
    except ValueError as error:
        assert str(error).startswith("f.txt:")
    else:
        collective_ops(module)


@MANY
@given(
    st.text(alphabet=' \n(){}[],=%"/*\\HloModuleENTRYabf32[4].-0123<>:', max_size=80)
)
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"f\.txt:"):
        parse("HloModule m\n" + text, source="f.txt")
