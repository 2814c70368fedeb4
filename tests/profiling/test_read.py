from pathlib import Path

import pytest

from profiling import Dump, collective_ops, read
from spmd._meshes.mesh import Mesh
from spmd._program.program import MLIR_MAGIC, Program
from spmd._program.value import Value
from tests.profiling.hlo_files import DATA, JAX, STEP

STEP_IN_JAX = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("fsdp",))
split = NamedSharding(mesh, P("fsdp", None))
step = lambda w, x: w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
jax.jit(step, in_shardings=(split, split), out_shardings=split)(
    np.ones((64, 16), "f"), np.ones((32, 64), "f")
)
"""
STEP_IN_TORCH_XLA = """
import numpy as np, torch, torch_xla, torch_xla.runtime
import torch_xla.distributed.spmd as xs
torch_xla.runtime.use_spmd()
mesh = xs.Mesh(np.arange(8), (8,), ("fsdp",))
w = torch.ones(64, 16).to("xla").requires_grad_()
x = torch.ones(32, 64).to("xla")
for t in (w, x):
    xs.mark_sharding(t, mesh, ("fsdp", None))
((x @ w) ** 2).mean().backward()
with torch.no_grad():
    w.sub_(w.grad)
torch_xla.sync()
"""


def test_a_program(tmp_path: Path) -> None:
    w = Value("w", "parameter", (8, 4), "float32", ("fsdp", None))
    program = Program(MLIR_MAGIC + b"...", Mesh({"fsdp": 4}), (w,), ())
    path = program.save(tmp_path / "step.spmd")
    assert read(path) == program
    other = path.rename(tmp_path / "no_suffix")
    assert read(str(other)) == program
    path.write_bytes(other.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"step\.spmd: "):
        read(path)


def test_a_directory() -> None:
    dump = read(JAX)
    assert isinstance(dump, Dump)
    assert len(dump.programs) == 3


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        (STEP, "scheduled"),
        (JAX / "module_0008.jit_step.before_optimizations.txt", "before"),
        (
            JAX / "module_0008.jit_step.0001.spmd-partitioner."
            "after_spmd-partitioning.before_control-dep-rewriter.txt",
            "partitioned",
        ),
        (DATA / "tpu_v5e_windowed.txt.gz", "scheduled"),
    ],
    ids=lambda p: p.name if isinstance(p, Path) else p,
)
def test_a_file_is_one_stage(path: Path, stage: str) -> None:
    dump = read(path)
    assert isinstance(dump, Dump)
    (program,) = dump.programs
    assert list(program.files) == [stage]
    assert getattr(program, stage).name == program.name == "jit_step"


def test_neither(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")
    path = tmp_path / "step.txt"
    path.write_text("hello")
    with pytest.raises(ValueError, match=r"step\.txt:1:1: no HLO text"):
        read(path)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        pytest.param(STEP_IN_JAX, "jit__lambda", id="jax"),
        pytest.param(
            STEP_IN_TORCH_XLA, "SyncTensors", id="torch_xla", marks=pytest.mark.slow
        ),
    ],
)
def test_what_the_installed_versions_write(script, name, run_script, tmp_path) -> None:
    """An FSDP step gathers the weight once and scatters its gradient once."""
    folder = tmp_path / "dump"
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_pass_re=spmd.*"
    result = run_script(script, env={"XLA_FLAGS": flags})
    assert result.rc == 0, result.stderr
    dump = read(folder)
    assert isinstance(dump, Dump)
    (program,) = [p for p in dump.programs if p.name.startswith(name) and p.partitioned]
    for module in (program.before, program.partitioned, program.scheduled):
        assert module is not None
        assert module.num_partitions == 8
    weight = 64 * 16 * 4
    found = {op.kind: op for op in collective_ops(program.scheduled)}
    assert found["all-gather"].wire_bytes == weight * 7 // 8
    assert found["reduce-scatter"].form == "all-reduce + slice"
    assert found["reduce-scatter"].wire_bytes == weight * 2 * 7 // 8
    assert found["reduce-scatter"].output_bytes == weight // 8
    assert program.buffer_assignment is not None
