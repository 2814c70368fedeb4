"""`Trial`: what one set of flags gave; `Judge`: compiles sets, each once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from profiling._compiling.compiled import CompileError, FlagValue
from profiling._targets.target import Target

if TYPE_CHECKING:
    from profiling._schedule import Schedule
    from spmd._program.program import Program

SAME = 1e-3
"""Share of a step below which two estimates count as the same."""

Flags: TypeAlias = Mapping[str, FlagValue]
Compile: TypeAlias = Callable[["Program", Target, Flags], "Schedule"]
Watch: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Told what is compiled; the block lasts as long as the compile."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one set of flags gave. Times are estimates.

    Attributes:
        label: Where the set is from, or what it changes.
        flags: The set; empty for the defaults.
        step_s: Time of a step; None where it was not compiled.
        exposed_s: Of it, communication that compute waits for.
        hidden_s: Communication behind compute.
        memory_bytes: What a device needs.
        over_bytes: Of it, what it has too little.
        error: Why it was not compiled; empty where it was.
        from_cache: Compiled in an earlier run.
    """

    label: str
    flags: Flags = field(hash=False)
    step_s: float | None = None
    exposed_s: float | None = None
    hidden_s: float | None = None
    memory_bytes: int | None = None
    over_bytes: int = 0
    error: str = ""
    from_cache: bool = False

    @property
    def fits(self) -> bool:
        """It was compiled, and a device has enough memory."""
        return self.step_s is not None and not self.over_bytes

    @property
    def overlapped_share(self) -> float | None:
        """Share of the communication behind compute; None where there is none."""
        if self.exposed_s is None or self.hidden_s is None:
            return None
        whole = self.exposed_s + self.hidden_s
        return self.hidden_s / whole if whole else None

    def is_better(self, other: Trial) -> bool:
        """Whether it beats another by more than estimates are good for.

        Args:
            other: The other.

        Returns:
            True if it fits where the other does not, or is faster by `SAME`. Where
            neither fits, the one that needs less is better.
        """
        if self.fits != other.fits:
            return self.fits
        if self.step_s is None or other.step_s is None:
            return self.step_s is not None and other.step_s is None
        if not self.fits:
            return self.over_bytes < other.over_bytes
        return self.step_s < other.step_s * (1 - SAME)

    def as_json(self) -> dict[str, Any]:
        """The fields as plain data; the same in every run.

        Returns:
            What `json.dumps` takes.
        """
        return {
            "label": self.label,
            "flags": dict(self.flags),
            "step_s": self.step_s,
            "exposed_s": self.exposed_s,
            "hidden_s": self.hidden_s,
            "memory_bytes": self.memory_bytes,
            "over_bytes": self.over_bytes,
            "error": self.error,
        }


class Judge:
    """Compiles sets of flags for one program and target, each at most once.

    Args:
        program: The step.
        target: What to compile for.
        budget: Sets to compile at most.
        compile: Compiles one.
        watch: Told what is compiled.
        num_workers: Compilers at a time; None for one on every two cores.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        *,
        budget: int,
        compile: Compile,
        watch: Watch | None = None,
        num_workers: int | None = None,
    ) -> None:
        self._program = program
        self._target = target
        self._budget = budget
        self._compile = compile
        self._watch = watch or (lambda what: nullcontext())
        self._num_workers = num_workers or max(1, (os.cpu_count() or 2) // 2)
        self._trials: dict[tuple[tuple[str, FlagValue], ...], Trial] = {}
        self._lock = threading.Lock()
        self._begun = 0
        self.versions: Mapping[str, str] = {}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What was tried, in order."""
        return tuple(self._trials.values())

    @property
    def left(self) -> int:
        """Sets that may still be compiled."""
        return self._budget - len(self._trials)

    def known(self, flags: Flags) -> Trial | None:
        """What a set gave.

        Args:
            flags: The set.

        Returns:
            None where it was not tried.
        """
        return self._trials.get(_key(flags))

    def try_all(
        self, sets: Iterable[tuple[str, Flags]], *, keep: int = 0
    ) -> list[Trial]:
        """Compile several sets, a few at a time.

        Args:
            sets: Each with its label; those that were tried are free.
            keep: Sets of the budget to leave over.

        Returns:
            A trial for each different set that the budget allowed, in their order.

        Raises:
            CompileError: The compiler is not installed or locked.
        """
        wanted = {_key(flags): (label, flags) for label, flags in sets}
        new = [key for key in wanted if key not in self._trials]
        new = new[: max(0, self.left - keep)]
        with ThreadPoolExecutor(self._num_workers) as pool:
            found = list(pool.map(lambda key: self._one(*wanted[key]), new))
        self._trials |= dict(zip(new, found, strict=True))
        return [self._trials[key] for key in wanted if key in self._trials]

    def _one(self, label: str, flags: Flags) -> Trial:
        with self._lock:
            self._begun += 1
            what = f"compiling {self._begun} of at most {self._budget}: {label}"
        flags = MappingProxyType(dict(flags))
        with self._watch(what):
            try:
                schedule = self._compile(self._program, self._target, flags)
            except CompileError as error:
                if error.kind in {"missing extra", "lock"}:
                    raise
                if error.compiled is None:
                    return _failed(label, flags, error)
                from profiling._analyse import analyse

                schedule = analyse(error.compiled, program=self._program)
        self.versions = schedule.versions
        return _tried(label, flags, schedule)


def _failed(label: str, flags: Flags, error: CompileError) -> Trial:
    said = error.words.strip().splitlines()[-1:] or str(error).splitlines()
    return Trial(
        label,
        flags,
        over_bytes=error.over_bytes or 0,
        error=f"{error.kind}: {said[0]}",
    )


def _tried(label: str, flags: Flags, schedule: Schedule) -> Trial:
    timeline = schedule.timeline
    assert timeline is not None, "what is compiled has a target and an order"
    compiled = schedule.compiled
    return Trial(
        label,
        flags,
        step_s=timeline.step_s,
        exposed_s=timeline.exposed_s,
        hidden_s=timeline.hidden_s,
        memory_bytes=schedule.memory.total_bytes,
        over_bytes=schedule.over_bytes,
        from_cache=compiled is not None and compiled.from_cache,
    )


def best_of(trials: Sequence[Trial]) -> Trial:
    """The best one; of those that count as the same, the first.

    Args:
        trials: At least one.

    Returns:
        One of them.
    """
    best, *others = trials
    for trial in others:
        if trial.is_better(best):
            best = trial
    return best


def _key(flags: Flags) -> tuple[tuple[str, FlagValue], ...]:
    return tuple(sorted(flags.items()))
