"""`read`: a program, an HLO file or a dump directory, told apart by their content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profiling._collectives.async_pairs import collective_kind
from profiling._dump import Dump, DumpedProgram, read_directory
from profiling._dump_names import Stage
from profiling._hlo.load import ZIP_MAGIC, load_module
from profiling._hlo.module import Module

if TYPE_CHECKING:
    from spmd._program.program import Program


def read(path: str | Path) -> Program | Dump:
    """Read what a compile left, or what can be compiled.

    Args:
        path: A `.spmd` program; an HLO file (text or proto, gzipped or not); or a
            directory that ``--xla_dump_to`` filled, by torch_xla or jax, on CPU, GPU or
            TPU.

    Returns:
        A `Program`, or a `Dump`; a single file is a dump of one program at one stage.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Damaged, cut short, or neither; says which file and where in it.
    """
    path = Path(path)
    if path.is_dir():
        return read_directory(path)
    with path.open("rb") as file:
        is_zip = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
    if is_zip or path.suffix == ".spmd":
        from spmd._program.program import Program

        return Program.load(path)
    module = load_module(path)
    stage = _stage(module)
    return Dump(
        path,
        (DumpedProgram(module.name, module.name, 0, {stage: path}, {stage: module}),),
    )


def _stage(module: Module) -> Stage:
    if module.is_scheduled:
        return "scheduled"
    if any(collective_kind(i.opcode) for i in module.instructions()):
        return "partitioned"
    return "before"
