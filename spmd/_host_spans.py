"""What the host does, as named spans in the timeline of whoever captures a profile.

A span costs less than a microsecond while nothing is captured, so it may stand in a
step. Each library that can capture (torch_xla, jaxlib) has a recorder of its own, which
hears of spans only through its own ``TraceMe``: the seams hand theirs to `record_with`.
Seconds are added up by name at all times.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, final

P = ParamSpec("P")
T = TypeVar("T")

ITERATION = "train"  # what jax and xprof call it; xprof takes it for a step
# xprof takes what is before the colon for an operation's name, and lists those only.
STEP = "spmd/step:"
TRACE = "spmd/trace:"
COMPILE = "spmd/compile:"
DISPATCH = "spmd/dispatch:"
DATA = "spmd/data:"
WAIT = "spmd/wait:"
CHECKPOINT = "spmd/checkpoint:"

_recorders: list[tuple[Callable[[], object], Callable[..., Any]]] = []
_seconds: dict[str, float] = {}
_counts: dict[str, int] = {}
_lock = threading.Lock()
_step_numbers = itertools.count()
_at_step: tuple[Callable[[], None], ...] = ()


@final
class span:
    """Name what the block does on this thread.

    Args:
        name: One of the names above. A span inside another of the same name would be
            counted twice.
        stats: Numbers or texts that the event carries.
    """

    __slots__ = ("_events", "_name", "_started", "_stats")

    def __init__(self, name: str, stats: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._stats = stats
        self._events: list[Any] | None = None

    def __enter__(self) -> None:
        for is_on, event in _recorders:
            if is_on():
                self._events = self._events or []
                self._events.append(_begun(event(self._name, **(self._stats or {}))))
        self._started = perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        passed = perf_counter() - self._started
        if self._events is not None:
            for event in reversed(self._events):
                event.__exit__(kind, error, trace)
        name = self._name
        with _lock:  # other threads span too, with the same names
            _seconds[name] = _seconds.get(name, 0.0) + passed
            _counts[name] = _counts.get(name, 0) + 1


def spanned(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Have each call of a function be a span.

    Args:
        name: See `span`.

    Returns:
        A decorator.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return function(*args, **kwargs)

        return call

    return decorate


def _begun(event: Any) -> Any:
    event.__enter__()
    return event


class _Here(threading.local):
    in_step = False
    iteration: tuple[Any, ...] = ()


_here = _Here()


@final
class step_span:
    """A span for a step, numbered from 0 over all steps of the process.

    Calls the listeners first, so that what one of them starts sees the whole step. A
    step inside a step is part of it and does nothing here.

    While someone records there is also an `ITERATION`, which goes on until the next
    step begins: the call alone, which only hands work to the devices, says little about
    how long a step takes.
    """

    __slots__ = ("_span",)

    def __init__(self) -> None:
        self._span: span | None = None

    def __enter__(self) -> None:
        if _here.in_step:
            return
        end_iteration()
        for listener in _at_step:
            listener()
        _here.in_step = True
        number = next(_step_numbers)
        _here.iteration = tuple(
            # `_r` makes it a root, by which xprof groups events into steps.
            _begun(event(ITERATION, step_num=number, _r=1))
            for is_on, event in _recorders
            if is_on()
        )
        self._span = span(STEP, {"step_num": number})
        self._span.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._span is not None:
            _here.in_step = False
            self._span.__exit__(kind, error, trace)


def end_iteration() -> None:
    """End the iteration of this thread's last step: only what ended is recorded."""
    for event in reversed(_here.iteration):
        event.__exit__(None, None, None)
    _here.iteration = ()


def at_each_step(listener: Callable[[], None]) -> Callable[[], None]:
    """Call before each step begins, in its thread.

    Args:
        listener: What to call.

    Returns:
        Ends it; may be called again.
    """
    global _at_step
    with _lock:
        _at_step = (*_at_step, listener)

    def end() -> None:
        global _at_step
        with _lock:
            _at_step = tuple(known for known in _at_step if known is not listener)

    return end


def record_with(event: Callable[..., Any], is_on: Callable[[], object]) -> None:
    """Have a library's recorder hear of spans.

    Args:
        event: Its ``TraceMe``: makes a context manager from a name and stats.
        is_on: Whether it records now.
    """
    _recorders.append((is_on, event))


def totals() -> dict[str, float]:
    """Seconds spent in spans so far, on all threads together.

    Returns:
        By name; names that did not occur are absent.
    """
    with _lock:
        return dict(_seconds)


def seconds_in(names: Sequence[str]) -> list[float]:
    """Seconds spent in some spans so far, on all threads together.

    Args:
        names: Of spans; of one that did not occur there are 0.0.

    Returns:
        For each.
    """
    with _lock:
        return list(map(_seconds.get, names, itertools.repeat(0.0)))


def counts() -> dict[str, int]:
    """Spans that have ended so far, on all threads together.

    Returns:
        By name; names that did not occur are absent.
    """
    with _lock:
        return dict(_counts)
