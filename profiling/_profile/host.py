"""What the host did: steps that it marks, and where its time went."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from profiling._profile.trace import Span
from profiling._profile.xplane import Line, Value

Doing: TypeAlias = Literal[
    "data", "checkpoint", "compile", "trace", "dispatch", "wait", "other"
]
ORDER: tuple[Doing, ...] = (
    "data",
    "checkpoint",
    "compile",
    "trace",
    "dispatch",
    "wait",
)
"""What the host is taken to do where spans overlap: the first of these."""

# Our own spans, then those that torch_xla, jax and TensorFlow write by themselves.
_NAMES: dict[Doing, str] = {
    "data": r"spmd[:/]data:?|IteratorGetNext.*|Iterator::.*|PrefetchConsume|"
    r"enumerate\(DataLoader\)#.*|DevicePut|device_put|TransferToDevice|"
    r"PjRtComputationClient::TransferToDevice",
    "checkpoint": r"spmd[:/]checkpoint:?",
    "compile": r"spmd[:/]compile:?|PjRtComputationClient::Compile|backend_compile|"
    r"XlaCompile\w*|PjRt\w*Client::Compile\w*|compile_or_get_cached",
    "trace": r"spmd[:/]trace:?|trace_to_jaxpr\w*|CollectSyncTensors|PostOrderData|"
    r"ExtractIRAndPrepareXlaData_|BuildInputOutputAliases",
    "dispatch": r"spmd[:/]dispatch:?|SyncTensorsGraph|SyncLiveTensorsGraph|"
    r"ExecuteComputationWithBarrier|PjitFunction\(.*\)|PjRt\w*Executable::Execute",
    "wait": r"spmd[:/]wait:?|WaitDeviceOps|TransferFromDevice|"
    r"PjRtComputationClient::TransferFromDevice|Await\w*|block_until_ready|"
    r"PjRt\w*Buffer::ToLiteral\w*",
}
_DOING: dict[Doing, re.Pattern[str]] = {
    doing: re.compile(text) for doing, text in _NAMES.items()
}
_STEP = "step_num"


def doing(name: str) -> Doing | None:
    """What a span says that the host did.

    Args:
        name: Of the span.

    Returns:
        One of the words; None for a span that says nothing about that.

    Example:
        >>> doing("spmd/data:"), doing("PjitFunction(step)"), doing("$builtins len")
        ('data', 'dispatch', None)
    """
    for word, of in _DOING.items():
        if of.fullmatch(name):
            return word
    return None


class HostSpans:
    """Collects the spans of a host's threads, line by line."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._known: dict[str, bool] = {}

    def add(self, number: int, line: Line) -> None:
        """Read a thread.

        Args:
            number: Of the thread.
            line: Its events.
        """
        for event in line.events:
            name = event.name
            wanted = self._known.get(name)
            if wanted is None:
                wanted = doing(name) is not None or _STEP in event.stats()
                self._known[name] = wanted
            if not wanted:
                continue
            step = _step_of(event.stats().get(_STEP))
            self._spans.append(Span(name, event.start_ps, event.end_ps, number, step))

    def found(self) -> tuple[Span, ...]:
        """All spans.

        Returns:
            Spans by their start.
        """
        return tuple(sorted(self._spans, key=lambda s: (s.start, -s.end)))


def _step_of(value: Value | None) -> int | None:
    """A step's number; None for what a loop may have given instead of one."""
    try:
        return None if value is None else int(value)
    except (ValueError, OverflowError):
        return None


def marked_steps(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The spans that mark steps.

    Args:
        spans: Of one host.

    Returns:
        Those of the name that marks most steps, by their start; a loop's own name
        counts before that of a call in it, and of spans that overlap the first.
    """
    by_name: dict[str, list[Span]] = {}
    for span in spans:
        if span.step is not None:
            by_name.setdefault(span.name, []).append(span)
    if not by_name:
        return ()
    most = max(by_name.values(), key=lambda s: (len({x.step for x in s}), _long(s)))
    found: list[Span] = []
    for span in sorted(most, key=lambda s: (s.start, -s.end)):
        if not found or span.start >= found[-1].end:
            found.append(span)
    return tuple(found)


def _long(spans: Sequence[Span]) -> int:
    return sum(s.end - s.start for s in spans)


def main_thread(spans: Sequence[Span]) -> int | None:
    """The thread that runs the steps: what others do holds up no device.

    Args:
        spans: Of one host.

    Returns:
        Its number; None where no span tells.
    """
    marks = marked_steps(spans)
    votes = Counter(s.thread for s in marks) or Counter(
        s.thread for s in spans if doing(s.name) == "dispatch"
    )
    return votes.most_common(1)[0][0] if votes else None
