import pytest

from profiling._hlo.load import load_module
from profiling._memory.held_tensors import held_tensors, role_of
from spmd._meshes.mesh import Mesh
from spmd._program.program import MLIR_MAGIC, Program
from spmd._program.value import Value
from tests.profiling.hlo_files import JAX, TORCH_XLA, entry

MESH = Mesh({"fsdp": 4, "tensor": 2})
BODY = (
    "a = bf16[2,8]{1,0} parameter(0)\nb = s32[4]{0} parameter(1)\n"
    "ROOT r = bf16[2,8]{1,0} negate(a)"
)


def program(*inputs: Value, mesh: Mesh | None = MESH) -> Program:
    return Program(MLIR_MAGIC, mesh, inputs, ())


def test_by_the_program():
    w = Value("w", "parameter", (8, 8), "bfloat16", ("fsdp", None))
    x = Value("x", "input", (4,), "int64", (None,))
    found = held_tensors(entry(BODY), program=program(w, x))
    assert [(t.name, t.role, t.dtype, t.shape) for t in found] == [
        ("w", "parameter", "bf16", (8, 8)),
        ("x", "input", "s32", (4,)),
    ]
    assert [(t.spec, t.device_bytes, t.copies) for t in found] == [
        (("fsdp", None), 32, 2),
        (None, 16, 8),  # no axis splits it
    ]


def test_without_a_mesh_there_is_one_copy():
    made = program(
        Value("w", "parameter", (2, 8), "bfloat16"),
        Value("x", "input", (4,), "int32"),
        mesh=None,
    )
    assert [t.copies for t in held_tensors(entry(BODY), program=made)] == [1, 1]


def test_another_program():
    made = program(Value("w", "parameter", (2, 8), "bfloat16"))
    with pytest.raises(ValueError, match=r"'m' has 2 inputs, program 'step' has 1"):
        held_tensors(entry(BODY), program=made)


def test_by_the_module():
    path = JAX / "module_0008.jit_step.cpu_after_optimizations.txt"
    found = held_tensors(load_module(path), mesh=MESH)
    assert [(t.name, t.role, t.shape) for t in found] == [
        ("w1", "unknown", (64, 128)),
        ("w2", "unknown", (128, 64)),
        ("x", "unknown", (32, 64)),
    ]
    assert [(t.spec, t.device_bytes, t.copies) for t in found] == [
        (("fsdp", "tensor"), 4096, 1),
        (("tensor", "fsdp"), 4096, 1),
        (("fsdp", None), 2048, 2),
    ]


def test_without_a_mesh_there_are_counts_alone():
    path = JAX / "module_0008.jit_step.cpu_after_optimizations.txt"
    found = held_tensors(load_module(path))
    assert [t.spec for t in found] == [None] * 3
    assert [t.copies for t in found] == [1, 1, 2]
    other = held_tensors(load_module(path), mesh=Mesh({"data": 8}))
    assert [t.spec for t in other] == [None] * 3  # no spec on it splits so


def test_torch_xla():
    path = next(TORCH_XLA.glob("*cpu_after_optimizations.txt"))
    found = held_tensors(load_module(path), mesh=Mesh({"fsdp": 8}))
    assert [(t.shape, t.copies) for t in found] == [
        ((64, 64), 1),
        ((32, 64), 1),
        ((), 8),
        ((), 8),
    ]


@pytest.mark.parametrize(
    ("sharding", "copies"),
    [
        ("", 1),  # nobody knows
        (", sharding={replicated}", 8),
        (", sharding={manual}", 1),
        (", sharding={devices=[2,1,4]<=[8] last_tile_dims={manual}}", 1),
    ],
)
def test_what_a_module_says_of_copies(sharding, copies):
    module = entry(
        f"ROOT a = f32[4,4] parameter(0){sharding}", header=", num_partitions=8"
    )
    (found,) = held_tensors(module, mesh=MESH)
    assert (found.shape, found.copies, found.spec) == ((4, 4), copies, None)


def test_a_tuple_of_inputs():
    module = entry(
        "p = (f32[4], s32[]) parameter(0), "
        'sharding={{devices=[8]<=[8]}, {replicated}}, metadata={op_name="batch"}\n'
        "ROOT a = f32[4] get-tuple-element(p), index=0",
        header=", num_partitions=8",
    )
    found = held_tensors(module, mesh=MESH)
    assert [(t.name, t.role, t.copies) for t in found] == [
        ("batch[0]", "input", 1),
        ("batch[1]", "input", 8),
    ]
    assert found[0].spec == (("fsdp", "tensor"),)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("params['layers'][0]['mu']", "parameter"),
        ("state.opt_state[0].mu['weight']", "optimizer"),
        ("batch['labels']", "input"),
        ("rng", "rng"),
        ("p[0][1]", "unknown"),
        ("parametric", "unknown"),
        ("", "unknown"),
    ],
)
def test_roles_by_name(name, role):
    assert role_of(name) == role


def test_a_name_that_xla_gave_tells_no_role():
    (found,) = held_tensors(entry("ROOT param.1 = f32[4] parameter(0)"))
    assert (found.name, found.role) == ("param.1", "unknown")
