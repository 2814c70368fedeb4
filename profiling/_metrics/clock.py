"""`StepClock`: what this thread did between one step's end and the next.

A runtime lets only so many steps run ahead of the devices; then the call that hands
over the next one blocks, without using the processor. So of that call what this thread
did not compute is waiting for the devices, not work of the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any, TypeVar, final

from spmd._host_spans import COMPILE, DATA, DISPATCH, WAIT, span, totals

B = TypeVar("B")
_END: Any = object()
_SPANS = (DATA, COMPILE, WAIT, DISPATCH)


@dataclass(slots=True)
class Lap:
    """Seconds from a step's end to the next.

    Attributes:
        data_s: Waiting for a batch.
        compile_s: Waiting for the compiler, where spmd called it.
        wait_s: Waiting for the devices.
        host_s: The rest.
    """

    data_s: float
    compile_s: float
    wait_s: float
    host_s: float

    def take(self, other: Lap) -> None:
        """Count another lap to this one, which is empty afterwards.

        Args:
            other: The other.
        """
        for name in ("data_s", "compile_s", "wait_s", "host_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
            setattr(other, name, 0.0)


@final
class StepClock:
    """Laps of a loop, and windows of laps; starts when it is made."""

    def __init__(self) -> None:
        self._twice = 0.0  # seconds that a span inside of a span has counted again
        self._spent = self._totals()
        self._mark = self._window = perf_counter()
        self._cpu = thread_time()

    def lap(self) -> Lap:
        """End a lap and begin the next.

        Returns:
            The one that has ended.
        """
        now, cpu, spent = perf_counter(), thread_time(), self._totals()
        data, compiled, waited, dispatched = (
            max(0.0, n - s) for n, s in zip(spent, self._spent, strict=True)
        )
        host = max(0.0, now - self._mark - data - compiled - waited)
        blocked = max(0.0, min(dispatched, host - (cpu - self._cpu)))
        self._mark, self._cpu, self._spent = now, cpu, spent
        return Lap(data, compiled, waited + blocked, host - blocked)

    def window(self) -> float:
        """End a window and begin the next.

        Returns:
            Seconds that it took.
        """
        now = perf_counter()
        passed, self._window = now - self._window, now
        return passed

    @contextmanager
    def no_lap(self) -> Iterator[None]:
        """Leave out of the laps what the block takes.

        Yields:
            Nothing.
        """
        started, cpu, spent = perf_counter(), thread_time(), self._totals()
        try:
            yield
        finally:
            self._mark += perf_counter() - started
            self._cpu += thread_time() - cpu
            gone = zip(self._spent, self._totals(), spent, strict=True)
            self._spent = [mine + now - before for mine, now, before in gone]

    @contextmanager
    def no_window(self) -> Iterator[None]:
        """Leave it out of the window as well.

        Yields:
            Nothing.
        """
        started = perf_counter()
        try:
            with self.no_lap():
                yield
        finally:
            self._window += perf_counter() - started

    def batches(self, loader: Iterable[B]) -> Iterator[B]:
        """Go through a loader and count waiting for it.

        Args:
            loader: Anything to loop over.

        Yields:
            Its batches.
        """
        source: Iterator[B] | None = None
        while True:
            before, started = totals().get(DATA, 0.0), perf_counter()
            with span(DATA):
                if source is None:
                    source = iter(loader)
                batch = next(source, _END)
            passed = perf_counter() - started
            # A loader of spmd's has counted its part of it.
            self._twice += max(0.0, totals().get(DATA, 0.0) - before - passed)
            if batch is _END:
                return
            yield batch

    def _totals(self) -> list[float]:
        spent = totals()
        data, *others = (spent.get(name, 0.0) for name in _SPANS)
        return [data - self._twice, *others]
