import gzip
import shutil
from pathlib import Path

import pytest

from profiling._dump import read_directory
from tests.profiling.hlo_files import DATA, JAX, TORCH_XLA


def test_jax_on_cpu() -> None:
    dump = read_directory(JAX)
    assert [p.name for p in dump.programs] == [
        "jit_broadcast_in_dim#2",
        "jit_broadcast_in_dim#4",
        "jit_step",
    ]
    step = dump.largest
    assert step is dump.program("jit_step")
    assert step.number == 8
    assert step.before is not None
    assert step.partitioned is not None
    assert step.scheduled is not None
    assert step.scheduled is step.scheduled  # read once
    assert len(step.before.entry.instructions) == 30
    assert not step.partitioned.is_scheduled
    assert step.scheduled.is_scheduled
    assert step.buffer_assignment is not None
    assert step.buffer_assignment.name.endswith("-buffer-assignment.txt")
    small = dump.program("jit_broadcast_in_dim#2")
    assert (small.partitioned, small.buffer_assignment) == (None, None)


def test_torch_xla_on_cpu_prefers_text() -> None:
    (program,) = read_directory(TORCH_XLA).programs
    assert program.name == "SyncTensorsGraph.47"
    assert program.files["scheduled"].suffix == ".txt"
    assert program.files["before"].suffix == ".pb"
    assert program.partitioned is not None
    assert program.partitioned.num_partitions == 8


@pytest.mark.parametrize(
    ("fixture", "name"),
    [
        ("gpu_h100", "module_0001.jit_step.sm_9.0a_gpu_after_optimizations.txt"),
        (
            "tpu_v5e_fused",
            "module_0000.jit_step.cl_933746096.after_optimizations.txt",
        ),
    ],
)
def test_gpu_and_tpu(fixture: str, name: str, tmp_path: Path) -> None:
    text = gzip.decompress((DATA / f"{fixture}.txt.gz").read_bytes())
    (tmp_path / name).write_bytes(text)
    (tmp_path / (name.partition(".")[0] + ".jit_step")).mkdir()
    (program,) = read_directory(tmp_path).programs
    assert program.name == "jit_step"
    assert program.scheduled is not None
    assert program.scheduled.num_partitions == 8


def test_the_newest_of_stamped_files(tmp_path: Path) -> None:
    source = JAX / "module_0002.jit_broadcast_in_dim.before_optimizations.txt"
    for stamp in (17, 9):
        shutil.copy(source, tmp_path / f"{stamp}.{source.name}")
    (program,) = read_directory(tmp_path).programs
    assert program.files["before"].name.startswith("17.")


def test_reprs() -> None:
    dump = read_directory(JAX)
    assert repr(dump) == f"Dump({str(JAX)!r}, 3 programs)"
    assert repr(dump.programs[0]) == (
        "DumpedProgram('jit_broadcast_in_dim#2': before, scheduled)"
    )


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"no file of an HLO dump.*--xla_dump_to=DIR"):
        read_directory(tmp_path)
    shutil.copytree(JAX, tmp_path / "inner")
    with pytest.raises(ValueError, match=r"did you mean .*inner\?"):
        read_directory(tmp_path)


def test_a_wrong_name_says_which_are_near() -> None:
    with pytest.raises(KeyError, match="no program 'jit_stop' among 3; near: jit_step"):
        read_directory(JAX).program("jit_stop")


def test_a_damaged_file_is_said_when_it_is_read(tmp_path: Path) -> None:
    name = "module_0002.jit_f.before_optimizations.txt"
    (tmp_path / name).write_text("HloModule m\n")
    (program,) = read_directory(tmp_path).programs
    with pytest.raises(
        ValueError, match=f"{name}:1:12: the text ends without an ENTRY"
    ):
        _ = program.before
