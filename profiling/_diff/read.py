"""`side`: what is compared of a step, from whatever one has of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from profiling._analyse import analyse
from profiling._compiling.anyway import compile_anyway
from profiling._compiling.compiled import FlagValue
from profiling._compiling.program import Progress
from profiling._diff.side import Side, is_json, side_of, sides_from_json
from profiling._dump import Dump, DumpedProgram
from profiling._read import read
from profiling._schedule import Schedule
from profiling._targets.target import Target
from spmd._program.program import Program

Opened: TypeAlias = Program | Dump | tuple[Side, ...]
Step: TypeAlias = (
    Side | Schedule | Program | Dump | DumpedProgram | str | os.PathLike[str]
)
"""What one may have of a step; a path is a program's, an HLO file's, a dump
directory's, or that of JSON which ``spmd inspect --json`` wrote."""


def side(
    step: Step,
    *,
    target: Target | str | None = None,
    flags: Mapping[str, FlagValue] | None = None,
    mesh: Mapping[str, int] | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Side:
    """Take from a step what `diff` compares.

    Args:
        step: A program, which is compiled; a schedule; a dump; a path of one of these,
            or of what ``spmd inspect --json`` wrote.
        target: What to compile a program for, such as ``"h100:2x8"``; of a dump: what
            it ran on; of JSON with several schedules: which.
        flags: XLA flags to compile a program with.
        mesh: Of a dump: sizes by axis, outermost first.
        name: Of a dump: which program; default: the largest.
        progress: See `profiling.compile`.

    Returns:
        The side.

    Raises:
        OSError: The path cannot be read.
        KeyError: The dump has no such program.
        TypeError: It is nothing of this kind.
        ValueError: A program without a target, an argument that does not apply, or a
            file that is damaged or has several schedules.
        CompileError: The compiler made nothing.
    """
    where = "the step"
    found: object = step
    if isinstance(step, str | os.PathLike):
        where, found = os.fspath(step), opened(Path(step))
    wanted = Target.parse(target) if isinstance(target, str) else target
    if isinstance(found, Program):
        _refuse(where, "is a program, which has its own", mesh=mesh, name=name)
        if wanted is None:
            raise ValueError(
                f"{where} is a program, not compiled yet: say for what, such as "
                f"target='h100:1x8'"
            )
        made = compile_anyway(found, wanted, flags=flags or {}, progress=progress)
        return side_of(made)
    if isinstance(found, Dump | DumpedProgram):
        _refuse(where, "is compiled already", flags=flags)
        if isinstance(found, Dump):
            found = found.largest if name is None else found.program(name)
        return side_of(analyse(found, mesh=mesh, target=wanted))
    _refuse(where, "is compiled and named already", flags=flags, mesh=mesh, name=name)
    if isinstance(found, Schedule):
        found = side_of(found)
    if isinstance(found, Side):
        found = (found,)
    if not isinstance(found, tuple):
        raise TypeError(
            f"{type(step).__name__} is nothing to compare: give a Program, a Schedule, "
            f"a Side, a Dump or a path"
        )
    return chosen(found, wanted, where)


def opened(path: Path) -> Opened:
    """Read a path.

    Args:
        path: See `Step`.

    Returns:
        A program, a dump, or the sides that JSON holds.

    Raises:
        OSError: It cannot be read.
        ValueError: It is nothing of this kind, or damaged.
    """
    return sides_from_json(path) if is_json(path) else read(path)


def chosen(sides: Sequence[Side], target: Target | None, where: str) -> Side:
    """The side that is for a target.

    Args:
        sides: At least one.
        target: The target; None where there is one side only.
        where: What to call them in messages.

    Returns:
        One of them.

    Raises:
        ValueError: None is for the target, or there are several and no target.
    """
    if target is None and len(sides) == 1:
        return sides[0]
    found = [s for s in sides if target is not None and s.target == target.text]
    if not found:
        texts = ", ".join(s.target or "no target" for s in sides)
        asked = "" if target is None else f", not {target.text}"
        raise ValueError(f"{where} is for {texts}{asked}: say which by its target")
    return found[0]


def both_sides(
    before: Step, after: Step, target: Target | str | None
) -> tuple[Side, Side]:
    """Take both; without a target a program is compiled for what the other is for.

    Args:
        before: The first step.
        after: The second.
        target: See `side`.

    Returns:
        Both.

    Raises:
        OSError: See `side`.
        TypeError: See `side`.
        ValueError: See `side`.
        CompileError: See `side`.
    """
    made: list[Side | None] = [None, None]
    steps = (before, after)
    is_program = [_is_program(step) for step in steps]
    for i in sorted((0, 1), key=is_program.__getitem__):
        known = next((s.target for s in made if s is not None and s.target), None)
        own = target if target is not None or not is_program[i] else known
        made[i] = side(steps[i], target=own)
    first, second = made
    assert first is not None and second is not None
    return first, second


def _is_program(step: Step) -> bool:
    if isinstance(step, str | os.PathLike):
        path = Path(step)
        return path.is_file() and isinstance(opened(path), Program)
    return isinstance(step, Program)


def _refuse(where: str, why: str, **given: object) -> None:
    for name, value in given.items():
        if value:
            raise ValueError(f"{name}= does not apply: {where} {why}")
