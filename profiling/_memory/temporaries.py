"""The temporaries of a compiled module: the largest, and those alive at the peak."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable

from profiling._memory.buffers import BufferAssignment, Event, Placed, from_proto

Lives = Callable[[Placed], "tuple[int, int] | None"]
"""When a value is made and last read; None where that is not known."""


def largest_temporaries(buffers: bytes, limit: int) -> dict[str, int]:
    """The largest values among a module's temporaries.

    Args:
        buffers: HloProto with a buffer assignment.
        limit: How many.

    Returns:
        Bytes by the name of the instruction that makes the value, largest first. Their
        sum says little: values that are not needed at the same time share memory.
    """
    found: dict[str, int] = {}
    values = (v for a in from_proto(buffers).temporaries for v in a.values)
    for value in heapq.nlargest(limit, values, key=lambda v: v.num_bytes):
        found.setdefault(value.name, value.num_bytes)
    return found


def alive_at_peak(
    assignment: BufferAssignment, lives: Lives | None = None
) -> tuple[Placed, ...]:
    """The temporaries that live when most memory of them is in use.

    The compiler's own account is taken where there is one: its trace of the layout, or
    the list in its text. Otherwise the lives in the schedule decide.

    Args:
        assignment: The compiler's.
        lives: Lives by the schedule.

    Returns:
        Largest first. Of values that share memory at that moment, such as an operand
        and the result in its place, one; so the bytes add up to what is in use.
    """
    found: list[Placed] = []
    for allocation in assignment.temporaries:
        values = {value.id: value for value in allocation.values}
        if assignment.peak:
            at = set(assignment.peak)
            alive = [v for v in values.values() if (v.name, v.index) in at]
        else:
            # A trace says its allocation's number of before they were sorted: of no
            # use; which values it speaks of tells as much.
            alive = [
                v for events in assignment.traces for v in _by_trace(events, values)
            ]
            if not alive and lives is not None:
                alive = _by_lives(values.values(), lives)
        found += _apart(alive)
    return tuple(sorted(found, key=lambda v: (-v.num_bytes, v.name, v.index)))


def _by_trace(events: Iterable[Event], values: dict[int, Placed]) -> list[Placed]:
    alive: dict[int, Placed] = {}
    held: Counter[tuple[int, int]] = Counter()  # values in one place, by the place
    best: list[Placed] = []
    now = most = 0
    for identity, starts in events:
        value = values.get(identity)
        if value is None or starts == (identity in alive):
            continue
        place = value.offset, value.num_bytes
        if not starts:
            del alive[identity]
            held[place] -= 1
            now -= 0 if held[place] else value.num_bytes
            continue
        alive[identity] = value
        held[place] += 1
        now += value.num_bytes if held[place] == 1 else 0
        if now > most:
            most, best = now, list(alive.values())
    return best


def _by_lives(values: Iterable[Placed], lives: Lives) -> list[Placed]:
    known = [(life, v) for v in values if (life := lives(v)) is not None]
    changes = sorted(
        [(start, 1, v.num_bytes) for (start, _), v in known]
        + [(end + 1, 0, -v.num_bytes) for (_, end), v in known]
    )
    now = most = best = 0
    for time, _, size in changes:
        now += size
        if now > most:
            most, best = now, time
    return [v for (start, end), v in known if start <= best <= end]


def _apart(values: list[Placed]) -> list[Placed]:
    """Without values that lie where a larger one lies."""
    kept: list[Placed] = []
    reached = -1
    for value in sorted(values, key=lambda v: (v.offset, -v.num_bytes)):
        if value.num_bytes and value.offset >= reached:
            kept.append(value)
            reached = value.offset + value.num_bytes
    return kept
