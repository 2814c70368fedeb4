import dataclasses

import pytest

import spmd
from flags import Workload
from profiling._targets.target import Target
from profiling._tuning.workload import workload, workload_of
from spmd._program.program import MLIR_MAGIC, Program
from spmd._program.value import Value

MESH = spmd.Mesh({"fsdp": 16})


def program(**shapes):
    """Bfloat16 weights of these shapes, those of two dims split on the first."""
    values = [
        Value(
            name.replace("__", "."),
            "parameter",
            shape,
            "bfloat16",
            ("fsdp", None) if len(shape) == 2 else (None,),
        )
        for name, shape in shapes.items()
    ]
    return Program(MLIR_MAGIC + b"x", MESH, values, (), name="step")


def test_figures():
    step = program(
        embed__weight=(64, 32),
        layers__0__a=(32, 16),
        layers__0__norm=(16,),
        layers__1__a=(32, 32),
        layers__10__b=(16, 16),
        head=(128, 128),
    )
    found = workload(step, Target.parse("h100:2x8"))
    weights = 64 * 32 + 32 * 16 + 16 + 32 * 32 + 16 * 16 + 128 * 128
    assert found == Workload(
        num_shards=16,
        num_hosts=2,
        layer_bytes=2 * 32 * 32,
        gradient_bytes=2 * weights,
    )


def test_of_layers_that_are_stacked_one_counts():
    step = program(embed__weight=(64, 32))
    stacked = Value("m.layers.*.a", "parameter", (4, 32, 16), "bfloat16")
    step = dataclasses.replace(step, inputs=(*step.inputs, stacked))
    found = workload(step, Target.parse("h100:2x8"))
    assert found.layer_bytes == 2 * 32 * 16
    assert found.gradient_bytes == 2 * (64 * 32 + 4 * 32 * 16)


def test_without_layers_or_weights():
    target = Target.parse("h100:2x8")
    assert workload(program(a=(32, 16), b=(16,)), target).layer_bytes == 2 * 32 * 16
    assert workload(program(), target) == Workload(1)


def on(mesh, spec, *, batch=("fsdp", None)):
    """A bfloat16 weight of 2 MB with this spec, and a batch."""
    values = [
        Value("layers.0.a", "parameter", (1024, 1024), "bfloat16", spec),
        Value("ids", "input", (64, 8), "int64", batch),
    ]
    return Program(MLIR_MAGIC + b"x", mesh, values, (), name="step")


@pytest.mark.parametrize(
    ("mesh", "spec", "batch", "shards", "hosts", "num_bytes", "copies"),
    [
        ({"fsdp": 16}, ("fsdp", None), ("fsdp", None), 16, 2, 2 << 20, 1),
        # over tensor a weight stays split: each device gathers a quarter
        ({"fsdp": 4, "tensor": 4}, ("tensor", "fsdp"), ("fsdp", None),
         4, 2, 1 << 19, 1),
        # copies on each host: gathered inside a host
        ({"replica": 2, "fsdp": 8}, ("fsdp", None), (("replica", "fsdp"), None),
         8, 1, 2 << 20, 2),
        ({"replica": 4, "fsdp": 4}, ("fsdp", None), (("replica", "fsdp"), None),
         4, 1, 2 << 20, 2),
        ({"fsdp": 8, "tensor": 2}, (("fsdp", "tensor"), None), ("fsdp", None),
         8, 2, 1 << 20, 1),
        # nothing is gathered
        ({"fsdp": 4, "tensor": 4}, ("tensor", None), ("fsdp", None),
         1, 1, 1 << 19, 2),
        # a batch that is not split says nothing
        ({"fsdp": 16}, ("fsdp", None), (None, None), 16, 2, 2 << 20, 1),
    ],
)  # fmt: skip
def test_what_is_gathered(mesh, spec, batch, shards, hosts, num_bytes, copies):
    step = on(spmd.Mesh(mesh), spec, batch=batch)
    found = workload(step, Target.parse("h100:2x8"))
    assert found == Workload(shards, hosts, num_bytes, num_bytes, copies)


def test_hosts_of_one_nvlink_domain_count_as_one():
    step = on(spmd.Mesh({"fsdp": 8}), ("fsdp", None))
    assert workload(step, Target.parse("gb200:2x4")).num_hosts == 1


def test_one_device():
    values = [Value("w", "parameter", (8, 8), "bfloat16", None)]
    step = Program(MLIR_MAGIC + b"x", None, values, (), name="step")
    assert workload(step, Target.parse("h100:1x1")) == Workload(1, 1, 128, 128)


def test_from_a_file(tmp_path):
    path = program(layers__0__a=(32, 16)).save(tmp_path / "step.spmd")
    found, backend = workload_of(path, "h100:2x8")
    assert (found.num_shards, backend) == (16, "gpu")
    assert workload_of(None, "v5e:4x4") == (None, "tpu")


def test_another_number_of_devices(tmp_path):
    path = program(a=(32, 16)).save(tmp_path / "step.spmd")
    with pytest.raises(ValueError, match="is for 16 devices, h100:1x8 has 8"):
        workload_of(path, "h100:1x8")


def test_no_target():
    with pytest.raises(ValueError, match="target 'h10'"):
        workload_of(None, "h10")
