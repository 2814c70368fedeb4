"""`Dump`: the programs of a dump directory, each with its module at three stages."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from profiling._dump_names import Stage, parse_name
from profiling._hlo.load import load_module
from profiling._hlo.module import Module

_FLAGS = "--xla_dump_to=DIR --xla_dump_hlo_pass_re=spmd.*"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DumpedProgram:
    """One compiled program, and where its modules are.

    Modules are read when first asked for, and kept.

    Attributes:
        name: Unique in its dump: the module's name, with its number where several
            programs share it.
        module_name: As XLA names the module.
        number: XLA's number of the module; 0 for a single file.
        files: File by stage.
    """

    name: str
    module_name: str
    number: int
    files: Mapping[Stage, Path]
    _loaded: dict[Stage, Module] = field(default_factory=dict)

    @property
    def before(self) -> Module | None:
        """The whole program, before it was partitioned; None if not dumped.

        Raises:
            ValueError: A damaged file.
        """
        return self._load("before")

    @property
    def partitioned(self) -> Module | None:
        """One device's program, as the partitioner left it; None if not dumped.

        XLA dumps it when told ``--xla_dump_hlo_pass_re=spmd.*`` (and always on GPU).

        Raises:
            ValueError: A damaged file.
        """
        return self._load("partitioned")

    @property
    def scheduled(self) -> Module | None:
        """One device's program as it runs; None if not dumped.

        Raises:
            ValueError: A damaged file.
        """
        return self._load("scheduled")

    @property
    def buffer_assignment(self) -> Path | None:
        """The file that says which buffers there are; None if not dumped."""
        return self.files.get("buffers")

    @property
    def num_bytes(self) -> int:
        """Size of the largest of its files."""
        return max((p.stat().st_size for p in self.files.values()), default=0)

    def _load(self, stage: Stage) -> Module | None:
        if stage not in self._loaded and stage in self.files:
            self._loaded[stage] = load_module(self.files[stage])
        return self._loaded.get(stage)

    def __repr__(self) -> str:
        return f"DumpedProgram({self.name!r}: {', '.join(sorted(self.files))})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Dump:
    """What was read.

    Attributes:
        path: Directory or file.
        programs: In the order in which they were compiled.
    """

    path: Path
    programs: tuple[DumpedProgram, ...]

    @property
    def largest(self) -> DumpedProgram:
        """The program with the largest file, which usually is the training step."""
        return max(self.programs, key=lambda p: p.num_bytes)

    def program(self, name: str) -> DumpedProgram:
        """The program of a name.

        Args:
            name: Its unique name.

        Returns:
            The program.

        Raises:
            KeyError: No program has that name; says which are near.
        """
        for program in self.programs:
            if program.name == name:
                return program
        names = [p.name for p in self.programs]
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]
        raise KeyError(
            f"{self.path}: no program {name!r} among {len(names)}; near: "
            f"{', '.join(near)}"
        )

    def __repr__(self) -> str:
        count = len(self.programs)
        return f"Dump({str(self.path)!r}, {count} program{'s' * (count != 1)})"


def read_directory(path: Path) -> Dump:
    """Find the programs in a dump directory.

    Args:
        path: What ``--xla_dump_to`` named.

    Returns:
        The dump; modules are read later.

    Raises:
        ValueError: No file there holds a program.
    """
    found: dict[tuple[int, str], dict[Stage, tuple[tuple[int, int], Path]]] = {}
    for file in sorted(path.iterdir()):
        named = parse_name(file.name)
        if named is None or not file.is_file():
            continue
        files = found.setdefault((named.number, named.name), {})
        order = (named.rank, -named.stamp)
        if named.stage not in files or order < files[named.stage][0]:
            files[named.stage] = (order, file)
    found = {key: files for key, files in found.items() if set(files) != {"buffers"}}
    if not found:
        raise ValueError(_nothing(path))
    names = [name for _, name in found]
    return Dump(
        path,
        tuple(
            DumpedProgram(
                name if names.count(name) == 1 else f"{name}#{number}",
                name,
                number,
                {stage: file for stage, (_, file) in sorted(files.items())},
            )
            for (number, name), files in sorted(found.items())
        ),
    )


def _nothing(path: Path) -> str:
    inside = [d for d in sorted(path.iterdir()) if d.is_dir()]
    better = next(
        (d for d in inside if any(parse_name(f.name) for f in d.iterdir())), None
    )
    hint = (
        f"did you mean {better}?" if better else f"write one with XLA_FLAGS='{_FLAGS}'"
    )
    return (
        f"{path}: no file of an HLO dump (module_0000.NAME.before_optimizations.txt "
        f"and the like) among {sum(1 for _ in path.iterdir())} entries; {hint}"
    )
