"""The tables of a `Profile`: operations, their classes, collectives, hosts, events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiling._collectives.collective import Collective
from profiling._profile.hlo import Joined
from profiling._profile.host import ORDER, Doing
from profiling._profile.measure import Key, Look, Measured, Part, doings_of
from profiling._profile.names import OpInfo, OpNames
from profiling._profile.profile import (
    HostEvent,
    HostTime,
    OpClass,
    Profile,
    ProfiledCollective,
    ProfiledOp,
)
from profiling._profile.sweep import HOLDS, MOVES
from profiling._profile.trace import OpEvent, Trace
from profiling._profile.xprof import op_rates
from profiling._schedule import Schedule
from profiling._timeline.timeline import Event

_PS = 1e-12


def ops_of(measured: Measured) -> tuple[ProfiledOp, ...]:
    """A row for each instruction.

    Args:
        measured: Sums.

    Returns:
        Operations, most time of their own first.
    """
    count = len(measured.parts)
    found = []
    for (program, name), entry in measured.ops.items():
        info = measured.infos[program, name]
        found.append(
            ProfiledOp(
                name,
                program,
                info.kind,
                entry.runs / count,
                entry.total * _PS / count,
                entry.own * _PS / count,
                info.module,
                info.phase,
                info.source,
            )
        )
    return tuple(sorted(found, key=lambda op: (-op.own_s, op.program, op.name)))


def with_rates(profile: Profile, files: Sequence[Path]) -> Profile:
    """Add what xprof counts of each operation.

    Args:
        profile: Without.
        files: That it was read from.

    Returns:
        The profile with rates; with a note where xprof has none.

    Raises:
        ValueError: xprof is missing, or fails.
    """
    rates = op_rates(files)
    if not rates:
        note = f"xprof makes no table of operations of this {profile.device_kind} run"
        return replace(profile, notes=(*profile.notes, note))
    ops = []
    for op in profile.ops:
        number = op.program.rpartition("(")[2].removesuffix(")")
        rate = rates.get((number, op.name))
        if rate is not None:
            op = replace(
                op,
                flops_per_s=rate.flops_per_s,
                bytes_per_s=rate.bytes_per_s,
                bound_by=rate.bound_by,
            )
        ops.append(op)
    return replace(profile, ops=tuple(ops))


def op_classes_of(
    ops: Sequence[ProfiledOp], measured: Measured, main: str, joined: Joined
) -> tuple[OpClass, ...]:
    """A row for each kind of operation, with what was predicted of it.

    Args:
        ops: From `ops_of`.
        measured: Sums.
        main: The main program.
        joined: Its HLO.

    Returns:
        Classes, most time of their own first.
    """
    rows: dict[tuple[str, bool], list[ProfiledOp]] = defaultdict(list)
    for op in ops:
        moves = measured.infos[op.program, op.name].level == MOVES
        rows[op.kind, moves].append(op)
    predicted = _predicted(joined.schedule, joined.names.get(main))
    for row, seconds in (predicted or {}).items():
        if seconds:  # of what did not run there is a row too
            rows.setdefault(row, [])
    total = {
        kind: sum(
            entry.total * _PS / len(measured.parts)
            for key, entry in measured.collectives.items()
            if measured.kinds[key] == kind
        )
        for kind, moves in rows
        if moves
    }
    found = [
        OpClass(
            kind,
            moves,
            len(of),
            sum(op.num_runs for op in of),
            total[kind] if moves else sum(op.total_s for op in of),
            sum(op.own_s for op in of),
            None if predicted is None else predicted.get((kind, moves), 0.0),
        )
        for (kind, moves), of in rows.items()
    ]
    return tuple(sorted(found, key=lambda c: (-c.own_s, c.kind)))


def _predicted(
    schedule: Schedule | None, names: OpNames | None
) -> dict[tuple[str, bool], float] | None:
    """Estimated seconds by kind: of compute all, of collectives what is exposed."""
    if schedule is None or schedule.timeline is None or names is None:
        return None
    found: dict[tuple[str, bool], float] = defaultdict(float)
    for event in schedule.timeline.events:
        if event.stream == "compute":
            found[names(event.name).kind, False] += event.duration_s
    for collective in schedule.collectives:
        found[collective.kind, True] += collective.exposed_s or 0.0
    return found


def collectives_of(
    measured: Measured, main: str, schedule: Schedule | None
) -> tuple[ProfiledCollective, ...]:
    """A row for each collective.

    Args:
        measured: Sums.
        main: The main program.
        schedule: What the compiler planned for that; None if unknown.

    Returns:
        Collectives, most exposed time first.
    """
    known = {} if schedule is None else {c.name: c for c in schedule.collectives}
    fastest = _fastest(measured.parts)
    count = len(measured.parts)
    found = []
    for key, entry in measured.collectives.items():
        program, name = key
        planned = known.get(name) if program == main else None
        own = measured.infos.get(key)
        found.append(
            ProfiledCollective(
                name,
                program,
                measured.kinds[key],
                entry.runs / count,
                entry.total * _PS / count,
                entry.own * _PS / count,
                fastest.get(key),
                **_planned(planned),
                **_place(planned, own),
            )
        )
    return tuple(sorted(found, key=lambda c: (-c.exposed_s, -c.total_s, c.name)))


def _planned(planned: Collective | None) -> dict[str, Any]:
    if planned is None:
        return {}
    return {
        "wire_bytes": planned.step_wire_bytes,
        "axes": planned.axes,
        "group_size": planned.group_size,
        "link": planned.link,
        "role": planned.role,
        "tensor": planned.tensor,
        "predicted_s": planned.total_s,
        "predicted_exposed_s": planned.exposed_s,
    }


def _place(planned: Collective | None, own: OpInfo | None) -> dict[str, Any]:
    place = planned or own
    if place is None:
        return {}
    return {"module": place.module, "phase": place.phase, "source": place.source}


def _fastest(parts: Sequence[Part]) -> dict[Key, float]:
    """Seconds a step that a collective takes the device that waits least, each time.

    Only where every device executed it as often.
    """
    steps: dict[Key, dict[int, list[list[int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for part in parts:
        for key, spans in part.transfers.items():
            steps[key][part.number].append([end - start for start, end in spans])
    found = {}
    for key, by_step in steps.items():
        total = 0
        for devices in by_step.values():
            if len({len(lengths) for lengths in devices}) != 1:
                break
            total += sum(map(min, zip(*devices, strict=True)))
        else:
            found[key] = total * _PS / max(1, len({p.number for p in parts}))
    return found


def host_times_of(measured: Measured, num_hosts: int) -> tuple[HostTime, ...]:
    """What hosts did, a step.

    Args:
        measured: Sums.
        num_hosts: Number of hosts.

    Returns:
        A row for each thing that took time.
    """
    idle: Counter[Doing] = Counter()
    for part in measured.parts:
        idle.update(part.idle)
    steps = max(1, measured.num_steps * num_hosts)
    words: tuple[Doing, ...] = (*ORDER, "other")
    return tuple(
        HostTime(
            word,
            measured.host.get(word, 0) * _PS / steps,
            idle[word] * _PS / max(1, len(measured.parts)),
        )
        for word in words
        if measured.host.get(word) or idle[word]
    )


def drawn_part(parts: Sequence[Part]) -> Part:
    """The step to be drawn.

    Args:
        parts: Steps of devices.

    Returns:
        Of the first device, the one with the median time.
    """
    host, device = parts[0].host, parts[0].device
    own = [p for p in parts if (p.host, p.device) == (host, device)]
    return sorted(own, key=lambda p: p.end - p.start)[len(own) // 2]


def host_events_of(part: Part, trace: Trace) -> tuple[HostEvent, ...]:
    """What the host did in a step.

    Args:
        part: The step, on one device.
        trace: Of its host.

    Returns:
        Events by their start.
    """
    events = [
        HostEvent(
            word,
            (max(start, part.start) - part.start) * _PS,
            (min(end, part.end) - max(start, part.start)) * _PS,
        )
        for word, spans in doings_of(trace).items()
        for start, end in spans
        if start < part.end and end > part.start
    ]
    return tuple(sorted(events, key=lambda e: (e.start_s, -e.duration_s)))


def events_of(part: Part, trace: Trace, look: Look) -> tuple[Event, ...]:
    """What a device did in a step.

    Args:
        part: The step, on one device.
        trace: Of its host.
        look: What an operation is.

    Returns:
        Events by their start.
    """
    ops = [
        op
        for op in trace.ops
        if op.device == part.device and part.start <= op.start < part.end
    ]
    return tuple(sorted(_drawn(part, ops, look), key=lambda e: e.start_s))


def _drawn(part: Part, ops: Sequence[OpEvent], look: Look) -> list[Event]:
    events = []
    known: dict[Key, OpInfo] = {}
    for op in ops:
        info = look(op)
        if info.collective:
            known.setdefault((op.program, info.collective), info)
        if info.level not in (MOVES, HOLDS):
            events.append(_event(op.name, info, op.start, op.end, part))
    for (program, name), spans in part.transfers.items():
        info = known[program, name]
        events += [_event(name, info, start, end, part) for start, end in spans]
    return events


def _event(name: str, info: OpInfo, start: int, end: int, part: Part) -> Event:
    return Event(
        name,
        "communication" if info.level == MOVES else "compute",
        info.kind,
        (start - part.start) * _PS,
        (end - start) * _PS,
        1,
        info.module,
        info.phase,
    )
