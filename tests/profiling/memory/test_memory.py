import dataclasses
from pathlib import Path

import pytest

from profiling._compiling.compiled import Compiled, Memory
from profiling._compiling.program import compile_program
from profiling._hlo.binary import read_binary
from profiling._hlo.load import load_module
from profiling._memory.memory import memory_use
from profiling._targets.target import Target
from spmd._meshes.mesh import Mesh
from tests.profiling.compilers import need
from tests.profiling.hlo_files import DATA, JAX, TORCH_XLA, entry
from tests.profiling.memory.test_buffers import (
    allocation,
    assigned,
    event,
    hlo_proto,
    message,
    value,
)
from tests.profiling.one_weight import SMALL, program

BODY = (
    'a = bf16[2,8] parameter(0), metadata={op_name="params"}\n'
    'b = f32[64] negate(a), metadata={op_name="backward/layers.0.ffn/mm"}\n'
    "t = (f32[64], f32[8]) custom-call(b)\nROOT r = f32[64] reverse(b)"
)


def compiled_by_hand(text: str, buffers: bytes, target: str = "v5e:2x4") -> Compiled:
    memory = Memory(1024, 256, 0, 4096, 99, 5000)
    return Compiled(Target.parse(target), "f", {}, b"", None, buffers, memory, 1.0, {})


def test_what_the_compiler_says_is_taken():
    buffers = hlo_proto(
        {1: "b", 2: "t", 3: "gone"},
        value(0, 1),
        value(1, 2, 1),
        value(2, 2),
        value(3, 3),
        allocation(
            0,
            4096,
            assigned(0, 256),
            assigned(1, 512, 256),
            assigned(2, 16, 1024),
            assigned(3, 8, 2048),
        ),
        message(4, event(0, 0), event(0, 1), event(0, 2), event(0, 3)),
    )
    found = memory_use(entry(BODY), compiled=compiled_by_hand(BODY, buffers))
    assert found.origin == "compiled"
    assert (found.argument_bytes, found.output_bytes) == (1024, 256)
    assert (found.temp_bytes, found.peak_bytes) == (4096, 5000)
    assert found.total_bytes == 1024 + 256 + 4096 + 99
    assert found.capacity_bytes == 16 * 2**30
    # 2 x 8 bf16 are 32 bytes; a TPU pads them.
    assert found.argument_bytes_by_role == {"parameter": 32, "padding": 992}
    # The table of t is not shown; of what the module does not have, name and size are.
    largest, layer, gone = found.at_peak
    assert (largest.name, largest.num_bytes, largest.shape) == ("t", 512, "f32[8]")
    assert (layer.module, layer.phase) == ("layers.0.ffn", "backward")
    assert layer.op_name == "backward/layers.0.ffn/mm"
    assert (gone.name, gone.num_bytes, gone.shape) == ("gone", 8, "")


def test_an_index_that_the_module_does_not_have():
    buffers = hlo_proto(
        {1: "b"},
        value(0, 1, 3),
        allocation(0, 64, assigned(0, 64)),
        message(4, event(0, 0)),
    )
    found = memory_use(entry(BODY), compiled=compiled_by_hand(BODY, buffers))
    assert [(b.name, b.shape) for b in found.at_peak] == [("b", "")]


def test_a_loop_variable_is_called_by_what_made_it():
    module = entry(
        "a = f32[8] parameter(0)\nb = f32[8] negate(a), "
        'metadata={op_name="forward/embed/neg"}\nt = (f32[8]) tuple(b)\n'
        "ROOT l = (f32[8]) while(t), condition=cond, body=body",
        before="body {\nROOT s = (f32[8]) parameter(0)\n}\ncond {\n"
        "s.1 = (f32[8]) parameter(0)\nROOT p = pred[] constant(false)\n}\n",
    )
    buffers = hlo_proto(
        {1: "s"},
        value(0, 1, 0),
        allocation(0, 32, assigned(0, 32)),
        message(4, event(0, 0)),
    )
    found = memory_use(module, compiled=compiled_by_hand("", buffers))
    assert [(b.name, b.module) for b in found.at_peak] == [("b", "embed")]


def test_without_a_buffer_assignment_the_figures_still_count():
    compiled = dataclasses.replace(compiled_by_hand(BODY, b""), buffers=None)
    found = memory_use(entry(BODY), compiled=compiled)
    assert (found.origin, found.temp_bytes, found.at_peak) == ("compiled", 4096, ())


def test_a_gathered_tensor_is_from_the_module_that_reads_it():
    gathered = "(f32[8], f32[8])"
    module = entry(
        "a = f32[8] parameter(0)\nb = f32[8] parameter(1)\n"
        f"s = ({gathered}, {gathered}) all-gather-start(a, b), "
        'metadata={op_name="forward/(x/dot:y/dot)"}\n'
        f"d = {gathered} all-gather-done(s)\n"
        "g = f32[8] get-tuple-element(d), index=1\n"
        'ROOT r = f32[8] sine(g), metadata={op_name="forward/y/sine"}'
    )
    buffers = hlo_proto(
        {1: "s"},
        value(0, 1, 1, 1),
        allocation(0, 32, assigned(0, 32)),
        message(4, event(0, 0)),
    )
    found = memory_use(module, compiled=compiled_by_hand("", buffers))
    assert [(b.name, b.module, b.phase) for b in found.at_peak] == [
        ("s", "y", "forward")
    ]


def test_a_dump_with_its_assignment():
    module = load_module(JAX / "module_0008.jit_step.cpu_after_optimizations.txt")
    (assignment,) = JAX.glob("*buffer-assignment.txt")
    found = memory_use(module, assignment=assignment, mesh=Mesh({"a": 4, "b": 2}))
    assert found.origin == "compiled"
    assert (found.argument_bytes, found.output_bytes) == (10240, 8208)
    assert (found.alias_bytes, found.temp_bytes) == (8192, 32772)
    assert found.total_bytes == 10240 + 16 + 32772
    assert found.capacity_bytes is None
    assert found.argument_bytes_by_role == {"unknown": 10240}
    # Which temporaries live together follows from the schedule.
    assert [(b.name, b.num_bytes, b.phase) for b in found.at_peak] == [
        ("all-reduce.2", 16384, "backward"),
        ("dot.3", 16384, "backward"),
        ("partition-id.1", 4, "backward"),
    ]


def test_a_dump_with_its_peak():
    module = load_module(next(TORCH_XLA.glob("*cpu_after_optimizations.txt")))
    (assignment,) = TORCH_XLA.glob("*buffer-assignment.txt")
    found = memory_use(module, assignment=assignment)
    assert [b.name for b in found.at_peak] == ["all-reduce.1", "dot.1", "partition-id"]
    assert [b.shape for b in found.at_peak] == ["f32[64,64]", "f32[64,64]", "u32[]"]


def test_a_proto_without_an_assignment_leaves_an_estimate(tmp_path):
    path = tmp_path / "a.hlo.pb"
    path.write_bytes(hlo_proto({1: "a"}))
    assert memory_use(entry(BODY), assignment=path).origin == "estimate"


@pytest.mark.parametrize(
    ("name", "temp"),
    [("gpu_h100.txt.gz", 14157088), ("tpu_v5e_fused.txt.gz", 0)],
)
def test_a_module_alone(name, temp):
    # Who made it is seen from how it is written. The H100's arena has 13.5 MiB; behind
    # it are six tables, the last of 32 bytes, each at a multiple of 256.
    found = memory_use(load_module(DATA / name))
    assert (found.origin, found.temp_bytes) == ("estimate", temp)
    assert found.argument_bytes == 1310720
    assert found.alias_bytes == 1048576
    assert sum(found.argument_bytes_by_role.values()) == found.argument_bytes


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize("text", ["cpu:8", "h100:1x8", "v5e:2x4"])
def test_a_compiled_step(text, cache):
    made = program(8)
    target = Target.parse(need(text))
    compiled = compile_program(made, target, cache_dir=cache)
    module = read_binary(compiled.hlo, source=text)
    found = memory_use(module, program=made, compiled=compiled)
    assert found.origin == "compiled"
    assert found.argument_bytes == compiled.memory.argument_bytes
    assert found.temp_bytes == compiled.memory.temp_bytes
    assert found.capacity_bytes == target.hbm_bytes
    weight, batch = SMALL * SMALL * 4 // 8, 8 * SMALL * 4  # on a device
    roles = {"parameter": weight, "input": batch}
    if target.kind == "tpu":
        roles["padding"] = weight + batch  # rows of 64 floats are padded to 128
    assert found.argument_bytes_by_role == roles
    assert sum(roles.values()) == found.argument_bytes
    assert [(t.name, t.spec, t.copies) for t in found.tensors] == [
        ("w", ("fsdp", None), 1),
        ("x", ("fsdp", None), 1),
    ]
    assert found.replicated == ()
    guess = memory_use(module, program=made, target=target)
    assert guess.origin == "estimate"
    assert guess.argument_bytes == weight + batch
    if target.kind != "tpu":  # whose temporaries all lie in its vector memory
        assert guess.temp_bytes == found.temp_bytes
        assert guess.output_bytes == found.output_bytes
        assert guess.alias_bytes == found.alias_bytes
        names = [b.name for b in found.at_peak]
        assert sorted(names) == sorted(b.name for b in guess.at_peak)
        held = sum(b.num_bytes for b in found.at_peak)
        assert 0.9 * found.temp_bytes < held <= found.temp_bytes
