"""Measure what devices did in each step: sums over operations, and where time went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from profiling._profile.host import ORDER, Doing, doing, main_thread
from profiling._profile.names import OpInfo
from profiling._profile.runs import Execution, executions, windows, within
from profiling._profile.sweep import MOVES, charge, covered
from profiling._profile.trace import OpEvent, Run, Trace

Look = Callable[[OpEvent], OpInfo]
Key = tuple[str, str]
"""Program and name."""
Interval = tuple[int, int]


@dataclass(slots=True)
class Sum:
    """Picoseconds of one operation, over all devices and steps."""

    runs: int = 0
    total: int = 0
    own: int = 0


@dataclass(slots=True)
class Part:
    """One step of one device, in picoseconds."""

    host: str
    device: int
    number: int
    start: int
    end: int
    compute: int = 0
    exposed: int = 0
    gap: int = 0
    idle: dict[Doing, int] = field(default_factory=dict)
    transfers: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    """Start and end of each collective's executions."""


@dataclass(slots=True)
class Measured:
    """Sums over whole steps; over the only one, if there is just that."""

    parts: list[Part] = field(default_factory=list)
    tails: list[Part] = field(default_factory=list)
    """The last step, where others are whole and this is not; it is in no sum."""
    ops: dict[Key, Sum] = field(default_factory=lambda: defaultdict(Sum))
    collectives: dict[Key, Sum] = field(default_factory=lambda: defaultdict(Sum))
    host: dict[Doing, int] = field(default_factory=lambda: defaultdict(int))
    infos: dict[Key, OpInfo] = field(default_factory=dict)
    kinds: dict[Key, str] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Whole steps that every device has."""
        return max((p.number for p in self.parts), default=-1) + 1


def by_device(
    trace: Trace, once: Mapping[str, Collection[str]]
) -> dict[int, tuple[Execution, ...]]:
    """Executions of each device of a trace.

    Args:
        trace: Of one host.
        once: By program, operations that an execution does once.

    Returns:
        Executions by number of the device.
    """
    ops: dict[int, list[OpEvent]] = defaultdict(list)
    runs: dict[int, list[Run]] = defaultdict(list)
    for op in trace.ops:
        ops[op.device].append(op)
    for run in trace.runs:
        runs[run.device].append(run)
    return {d: executions(found, runs[d], once) for d, found in sorted(ops.items())}


def measure(
    traces: Sequence[tuple[Trace, dict[int, tuple[Execution, ...]]]],
    program: str,
    per_step: int,
    look: Look,
) -> Measured:
    """Measure all steps of all devices.

    Args:
        traces: Of each host, with the executions of its devices.
        program: The main program.
        per_step: Executions of it in a step.
        look: What an operation is.

    Returns:
        Sums over the steps that every device has.
    """
    found = Measured()
    steps = [
        (trace.host, device, done, windows(done, program, per_step))
        for trace, devices in traces
        for device, done in devices.items()
    ]
    spans = {trace.host: doings_of(trace) for trace, _ in traces}
    count = min((len(w) for *_, w in steps if w), default=0)
    is_whole = all(w[count - 1].is_whole for *_, w in steps if w)
    whole = count if is_whole else max(1, count - 1)
    for host, device, done, all_windows in steps:
        if not all_windows:
            continue
        ops = sorted((op for e in done for op in e.ops), key=lambda op: op.start)
        starts = [op.start for op in ops]
        busy = [(e.start, e.end) for e in done]
        for number, window in enumerate(all_windows[:count]):
            start, end = window.start, window.end
            part = Part(host, device, number, start, end)
            inside = within(ops, starts, start, end)
            into = found if number < whole else Measured()
            idle = _charge(part, inside, look, into)
            meanwhile: dict[Doing, list[Interval]] = {
                word: _meeting(s, start, end) for word, s in spans[host].items()
            }
            _idle(part, idle, _meeting(busy, start, end), meanwhile)
            (found.parts if number < whole else found.tails).append(part)
    for host, of_host in spans.items():
        _host(found, host, of_host)
    return found


def _charge(
    part: Part, ops: Sequence[OpEvent], look: Look, found: Measured
) -> tuple[tuple[int, int], ...]:
    infos = [look(op) for op in ops]
    charged = charge(
        [(op.start, op.end, info.level) for op, info in zip(ops, infos, strict=True)],
        part.start,
        part.end,
    )
    started: dict[Key, list[int]] = defaultdict(list)
    for op, info, own in zip(ops, infos, charged.own, strict=True):
        key = op.program, op.name
        found.infos[key] = info
        entry = found.ops[key]
        entry.runs += 1
        entry.total += op.end - op.start
        entry.own += own
        if info.level == MOVES:
            part.exposed += own
            _transfer(part, op, info, own, found, started)
        else:
            part.compute += own
    for key, spans in part.transfers.items():
        entry = found.collectives[key]
        entry.runs += len(spans)
        entry.total += sum(end - start for start, end in spans)
    return charged.idle


def _transfer(
    part: Part,
    op: OpEvent,
    info: OpInfo,
    own: int,
    found: Measured,
    started: dict[Key, list[int]],
) -> None:
    """Join the start of a collective to its done: what lies between is its time."""
    key = op.program, info.collective
    found.collectives[key].own += own
    found.kinds[key] = info.kind
    spans = part.transfers.setdefault(key, [])
    if info.part == "done" and started[key]:
        at = started[key].pop(0)
        spans[at] = spans[at][0], max(op.end, spans[at][1])
        return
    if info.part == "start":
        started[key].append(len(spans))
    spans.append((op.start, op.end))


def _idle(
    part: Part,
    idle: Iterable[tuple[int, int]],
    busy: Sequence[Interval],
    spans: Mapping[Doing, Sequence[Interval]],
) -> None:
    """Tell what is idle in a program from what is idle between two."""
    for start, end in idle:
        inside = covered(busy, start, end)
        part.gap += inside
        if inside == end - start:
            continue
        edges = {start, end, *(x for span in busy for x in span if start < x < end)}
        cuts = sorted(edges)
        for first, last in pairwise(cuts):
            if not covered(busy, first, last):
                for word, length in _doing(spans, first, last).items():
                    part.idle[word] = part.idle.get(word, 0) + length


def _doing(
    spans: Mapping[Doing, Sequence[Interval]], start: int, end: int
) -> dict[Doing, int]:
    """What the host did in an interval; adds up to its length."""
    taken: list[Interval] = []
    found: dict[Doing, int] = {}
    reached = 0
    for word in ORDER:
        taken = sorted([*taken, *_meeting(spans.get(word, ()), start, end)])
        now = covered(taken, start, end)
        if now > reached:
            found[word] = now - reached
        reached = now
    if reached < end - start:
        found["other"] = end - start - reached
    return found


def _meeting(spans: Iterable[Interval], start: int, end: int) -> list[Interval]:
    return [s for s in spans if s[0] < end and s[1] > start]


def doings_of(trace: Trace) -> dict[Doing, list[Interval]]:
    """What the thread that runs the steps did.

    Args:
        trace: Of one host.

    Returns:
        Start and end of its spans by what they say, in picoseconds.
    """
    thread = main_thread(trace.spans)
    found: dict[Doing, list[Interval]] = defaultdict(list)
    for span in trace.spans:
        word = doing(span.name)
        if word is not None and thread in (None, span.thread):
            found[word].append((span.start, span.end))
    return found


def _host(found: Measured, host: str, spans: Mapping[Doing, list[Interval]]) -> None:
    parts = [p for p in found.parts if p.host == host]
    if not parts:
        return
    start, end = min(p.start for p in parts), max(p.end for p in parts)
    for word, intervals in spans.items():
        found.host[word] += covered(intervals, start, end)
