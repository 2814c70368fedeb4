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
from typing import Any, TypeAlias, TypeVar, final

from spmd._host_spans import COMPILE, DATA, DISPATCH, WAIT, seconds_in, span, totals

B = TypeVar("B")
_END: Any = object()
_SPANS = (DATA, COMPILE, WAIT, DISPATCH)
Mark: TypeAlias = tuple[float, ...]
"""What the clocks show: of the wall, of this thread's processor, and of `_SPANS`."""
Way: TypeAlias = tuple[Mark, Mark]


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

    @classmethod
    def of(cls, ways: Iterable[Way], waited_s: float = 0.0) -> Lap:
        """Add up ways.

        Args:
            ways: From `StepClock.way`.
            waited_s: Waiting for the devices besides.

        Returns:
            Their sum.
        """
        found = cls(0.0, 0.0, waited_s, 0.0)
        for (then, cpu_then, *before), (now, cpu_now, *spent) in ways:
            data, compiled, waited, dispatched = (
                max(0.0, n - b) for n, b in zip(spent, before, strict=True)
            )
            host = max(0.0, now - then - data - compiled - waited)
            blocked = max(0.0, min(dispatched, host - (cpu_now - cpu_then)))
            found.data_s += data
            found.compile_s += compiled
            found.wait_s += waited + blocked
            found.host_s += host - blocked
        return found


@final
class StepClock:
    """Laps of a loop, and windows of laps; starts when it is made."""

    def __init__(self) -> None:
        self._twice = 0.0  # seconds that a span inside of a span has counted again
        self._last = self._mark()
        self._window = self._last[0]

    def way(self) -> Way:
        """End a lap and begin the next.

        Returns:
            From where to where it went: all that is done in each step, in the middle of
            which nothing is in the caches. `Lap.of` has its seconds.
        """
        last, self._last = self._last, self._mark()
        return last, self._last

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
        before = self._mark()
        try:
            yield
        finally:
            gone = zip(self._last, self._mark(), before, strict=True)
            self._last = tuple(mine + now - then for mine, now, then in gone)

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

    def _mark(self) -> Mark:
        data, compiled, waited, dispatched = seconds_in(_SPANS)
        data -= self._twice
        return perf_counter(), thread_time(), data, compiled, waited, dispatched
