"""`Outcome`: what came of one target; a schedule, an error, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling._analyse import analyse
from profiling._compiling.compile import compile_many
from profiling._compiling.compiled import CompileError, FlagValue
from profiling._compiling.program import Progress
from profiling._schedule import Schedule
from profiling._targets.target import Target

if TYPE_CHECKING:
    from spmd._program.program import Program

FORMAT = 1
"""Of `document`; raised when a field goes or comes to mean another thing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one target.

    Attributes:
        target: Its text; empty for a dump whose target nobody said.
        schedule: None where the compiler made nothing.
        error: None where nothing went wrong. A program that a GPU's compiler compiled,
            but that is too big, has both.
    """

    target: str
    schedule: Schedule | None
    error: CompileError | None = None

    @property
    def is_finding(self) -> bool:
        """Something is wrong: it was not compiled, or a device has too little."""
        over = self.schedule is not None and self.schedule.over_bytes > 0
        return over or self.error is not None


def compiled_outcomes(
    program: Program,
    targets: Sequence[Target],
    *,
    flags: Mapping[str, FlagValue],
    progress: Progress,
) -> tuple[Outcome, ...]:
    """Compile a program for each of several targets.

    Args:
        program: For as many devices as each target has.
        targets: The targets.
        flags: XLA flags by name.
        progress: See `profiling.compile`.

    Returns:
        One for each target.

    Raises:
        ValueError: A target of another number of devices, or a flag that is reserved.
    """
    results = compile_many(program, targets, flags=flags, progress=progress)
    return tuple(_outcome(text, r, program) for text, r in results.items())


def _outcome(text: str, result: Schedule | CompileError, program: Program) -> Outcome:
    if isinstance(result, Schedule):
        return Outcome(text, result)
    if result.compiled is None:
        return Outcome(text, None, result)
    return Outcome(text, analyse(result.compiled, program=program), result)


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Outcomes as data; `schema/inspect.json` describes the form.

    Args:
        outcomes: One for each target.

    Returns:
        Schedules, and compiles that failed.
    """
    from profiling._schedule_json import error_as_json

    return {
        "format": FORMAT,
        "schedules": [o.schedule.as_json() for o in outcomes if o.schedule],
        "failures": [error_as_json(o.error) for o in outcomes if o.error],
    }


def save_pages(outcomes: Sequence[Outcome], path: Path) -> tuple[Path, ...]:
    """Write a page for each schedule.

    Args:
        outcomes: One for each target.
        path: Where to; of several targets each has its name before the suffix.

    Returns:
        What was written.

    Raises:
        OSError: It cannot be written.
    """
    written = []
    for outcome in outcomes:
        if outcome.schedule is None:
            continue
        page = path
        if len(outcomes) > 1:
            target = outcome.target.replace(":", "-").replace("*", "-slices-")
            page = path.with_name(f"{path.stem}-{target}{path.suffix}")
        written.append(outcome.schedule.save_html(page))
    return tuple(written)
