"""Schedules for tests of `tune`, from a formula instead of a compiler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from profiling._compiling.compiled import CompileError
from profiling._schedule import Schedule
from profiling._targets.target import Target
from tests.profiling.schedules import GIB, MEMORY, TIMELINE, schedule

H100 = Target.parse("h100:1x8")


def made(step_s: float, *, memory_bytes: int = 50 * GIB, exposed_s: float = 1.0):
    """A schedule with these figures."""
    return schedule(
        timeline=replace(TIMELINE, step_s=step_s, exposed_s=exposed_s, hidden_s=3.0),
        memory=replace(MEMORY, total_bytes=memory_bytes),
    )


class FakeCompiler:
    """Compiles by a formula of the flags, and remembers what it compiled.

    Args:
        step: Gives a step's seconds, a schedule, or an error to raise.
    """

    def __init__(self, step: Callable[[Mapping[str, Any]], Any]) -> None:
        self._step = step
        self._lock = threading.Lock()
        self.calls: list[dict[str, Any]] = []

    def __call__(self, program: Any, target: Target, flags: Mapping[str, Any]):
        with self._lock:
            self.calls.append(dict(flags))
        found = self._step(flags)
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, Schedule) else made(found)


def failure(kind: str, **fields: Any) -> CompileError:
    """What a compile can end in."""
    return CompileError(f"h100:1x8: {kind}\nmore", kind=kind, target=H100, **fields)
