import dataclasses

import pytest

from profiling import Dump, analyse, collective_ops, load_module, read
from profiling._analyse import num_devices
from profiling._compiling.program import compile_program
from profiling._dump import DumpedProgram
from spmd._meshes.mesh import Mesh
from tests.profiling.hlo_files import DATA, JAX, STEP, TORCH_XLA, content, parse
from tests.profiling.one_weight import program

AXES = {"fsdp": 4, "tensor": 2}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    return compile_program(program(8), "cpu:8", cache_dir=folder)


def step() -> DumpedProgram:
    dump = read(JAX)
    assert isinstance(dump, Dump)
    return dump.largest


def test_a_dumped_program():
    found = analyse(step(), mesh=AXES, target="v5e:2x4")
    assert found.name == "jit_step"
    assert found.source.endswith("cpu_after_optimizations.txt")
    assert found.mesh == Mesh(AXES)
    assert found.target is not None
    assert found.memory.capacity_bytes == found.target.hbm_bytes
    assert found.timeline is not None
    assert found.compile_s is found.compiled is None
    assert (dict(found.flags), dict(found.versions), found.warnings) == ({}, {}, ())
    axes = {c.axes for c in found.collectives}
    assert axes == {("fsdp",), ("tensor",)}
    (note,) = found.notes
    assert note.startswith("no program: names and roles are those that the module")


def test_bytes_are_those_of_the_collectives():
    found = analyse(step(), mesh=AXES)
    counted = sum(op.step_wire_bytes for op in collective_ops(load_module(STEP)))
    assert found.wire_bytes == counted
    for by in ("role", "axes", "kind", "phase", "link"):
        assert sum(t.step_wire_bytes for t in found.totals(by)) == counted


def test_without_anything():
    found = analyse(step())
    assert (found.mesh, found.target, found.timeline) == (None, None, None)
    assert [n.partition(":")[0] for n in found.notes] == [
        "no target",
        "no mesh",
        "no program",
    ]
    assert all(c.exposed_s is None for c in found.collectives)
    assert all(c.link == "" for c in found.collectives)


def test_a_module():
    module = load_module(DATA / "gpu_h100.txt.gz")
    found = analyse(module, target="h100:1x8", mesh=Mesh({"fsdp": 8}))
    assert found.name == module.name
    assert found.module is module
    assert found.source == module.source
    assert found.timeline is not None


@pytest.mark.parametrize("folder", [JAX, TORCH_XLA], ids=lambda p: p.name)
def test_a_module_that_is_not_scheduled(folder):
    dump = read(folder)
    assert isinstance(dump, Dump)
    module = dump.largest.partitioned
    assert module is not None
    found = analyse(module, target="cpu:8")
    assert found.timeline is None
    assert found.collectives
    assert "this module is not scheduled, so there is no timeline" in found.notes[0]


def test_a_module_before_partitioning():
    dump = read(JAX / "module_0008.jit_step.before_optimizations.txt")
    assert isinstance(dump, Dump)
    found = analyse(dump.largest)
    assert found.collectives == ()
    assert "only the module before partitioning was dumped" in found.notes[0]


def test_what_was_compiled(compiled):
    found = analyse(compiled, program=program(8))
    assert found.compiled is compiled
    assert found.target == compiled.target
    assert found.memory.origin == "compiled"
    assert [t.name for t in found.memory.tensors] == ["w", "x"]
    assert found.notes == ()
    alone = analyse(compiled)
    assert alone.mesh is None
    assert alone.name != "step"
    assert alone.wire_bytes == found.wire_bytes


def test_a_size_that_is_left(compiled):
    assert analyse(compiled, mesh={"a": 2, "b": -1}).mesh == Mesh({"a": 2, "b": 4})


@pytest.mark.parametrize(
    ("what", "match"),
    [
        (program(8), r"profiling\.compile\(program, target\)"),
        (read(JAX), "analyse one program of a dump"),
        ("step.txt", "'step.txt'; a Module, a DumpedProgram or a Compiled is needed$"),
    ],
    ids=["program", "dump", "text"],
)
def test_something_else(what, match):
    with pytest.raises(TypeError, match=match):
        analyse(what)


def test_another_number_of_devices(compiled):
    with pytest.raises(ValueError, match=r"jit_step: it is for 8 devices, cpu:4 has 4"):
        analyse(step(), target="cpu:4")
    with pytest.raises(ValueError, match=r"it is for 8 devices, Mesh\(a=4\) has 4"):
        analyse(step(), mesh={"a": 4})
    with pytest.raises(ValueError, match=r"target cpu:16, but this was compiled for"):
        analyse(compiled, target="cpu:16")
    with pytest.raises(ValueError, match="unknown name 'nothing'"):
        analyse(step(), target="nothing")


def test_no_module_at_all():
    empty = DumpedProgram("step", "step", 0, {})
    with pytest.raises(ValueError, match="step: no module in this dump"):
        analyse(empty)


def test_lines_that_contradict_each_other():
    dims = content(STEP).replace(
        b"lhs_contracting_dims={1}", b"lhs_contracting_dims={7}"
    )
    with pytest.raises(ValueError, match="test: its instructions do not fit together"):
        analyse(parse(dims), target="cpu:8")
    entry = load_module(STEP).entry.name.encode()
    calls = content(STEP).replace(b"to_apply=%add.clone", b"to_apply=%" + entry)
    with pytest.raises(ValueError, match=r"calls 'main.*which does not stand before"):
        analyse(parse(calls), target="cpu:8")


def test_num_devices():
    module = load_module(STEP)
    assert num_devices(module) == 8
    assert num_devices(dataclasses.replace(module, num_replicas=2)) == 16
