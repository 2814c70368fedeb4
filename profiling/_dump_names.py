"""Names of the files that ``--xla_dump_to`` writes, and what each holds.

Seen from torch_xla 2.9 and jaxlib 0.10.2 on CPU, the CUDA plugin 0.10.2 and libtpu
0.0.42: ``module_0008.jit_step.cpu_after_optimizations.txt``,
``module_0001.jit_step.sm_9.0a_gpu_after_optimizations.txt``,
``module_0000.jit_step.cl_933746096.after_optimizations_after_buffer_assignment.txt``,
``module_0008.jit_step.0007.spmd-partitioner.after_spmd-partitioning.before_x.hlo.pb.gz``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["before", "partitioned", "scheduled", "buffers"]

_PLATFORM = r"(?:cpu_|gpu_|tpu_|sm_[\w.]+?_gpu_|gfx[\w.]+?_gpu_|\w+?_)?"
_PASS = r"\d{4,}\.[A-Za-z_][\w\- ]*\.after_[\w\- ]+?(?:\.before_[\w\- ]+?)?"
_FILE = re.compile(
    r"(?:(?P<stamp>\d+)\.)?module_(?P<number>\d+)\.(?P<name>.+?)(?:\.cl_\d+)?\."
    rf"(?P<what>before_optimizations|after_spmd_partitioner|{_PASS}"
    rf"|{_PLATFORM}after_(?:optimizations|codegen)[\w\-]*)"
    r"\.(?P<form>txt|hlo\.pb|pb)(?P<packed>\.gz)?"
)
_RANKS: tuple[tuple[Stage, re.Pattern[str]], ...] = (
    ("before", re.compile(r"before_optimizations")),
    ("before", re.compile(r".*\.before_(?:tpu-)?spmd-partitioning")),
    ("partitioned", re.compile(r".*\.after_(?:tpu-)?spmd-partitioning(?:\..*)?")),
    ("partitioned", re.compile(r"after_spmd_partitioner")),
    ("scheduled", re.compile(r".*after_optimizations_after_buffer_assignment")),
    ("scheduled", re.compile(r".*after_optimizations")),
    ("scheduled", re.compile(r".*after_codegen")),
    ("scheduled", re.compile(r".*after_optimizations_before_buffer_assignment")),
    ("buffers", re.compile(r".*after_optimizations-buffer-assignment")),
)
"""What holds which stage, the better one first."""


@dataclass(frozen=True, slots=True, order=True)
class DumpName:
    """What a file name says.

    Attributes:
        stamp: Time it was written, where XLA was told to write that; else 0.
        number: Number of the module in its process.
        name: Name of the module.
        stage: What the file holds.
        rank: Lower is better among files of one stage.
    """

    stamp: int
    number: int
    name: str
    stage: Stage
    rank: int


def parse_name(name: str) -> DumpName | None:
    """Read a file name.

    Args:
        name: Without its folder.

    Returns:
        What it says; None for a file that holds no stage.

    Example:
        >>> parse_name("module_0003.Sync.47.sm_9.0a_gpu_after_optimizations.hlo.pb.gz")
        DumpName(stamp=0, number=3, name='Sync.47', stage='scheduled', rank=11)
    """
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    for i, (stage, pattern) in enumerate(_RANKS):
        if pattern.fullmatch(match["what"]):
            # Text says how many partitions there are; a proto only lets that be seen.
            rank = 2 * i + (match["form"] != "txt")
            return DumpName(
                int(match["stamp"] or 0),
                int(match["number"]),
                match["name"],
                stage,
                rank,
            )
    return None
