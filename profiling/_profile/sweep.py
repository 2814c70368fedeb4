"""Charge each instant of a device to one operation, so that times add up.

Operations overlap: a loop holds its body, a collective runs beside compute, streams run
side by side. Of all that run at an instant the one of the highest level is charged, and
of several such the one that started last, which is the innermost. What is charged to a
collective is then the time in which compute waits for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal[0, 1, 2]
HOLDS: Level = 0
"""Of an operation that only holds others, such as a loop."""
MOVES: Level = 1
"""Of a collective."""
COMPUTES: Level = 2
"""Of everything else."""


@dataclass(frozen=True, slots=True)
class Charged:
    """What a window of time went to.

    Attributes:
        own: Picoseconds charged to each operation, in the order they were given.
        idle: Intervals in which nothing ran.
    """

    own: tuple[int, ...]
    idle: tuple[tuple[int, int], ...]


def charge(spans: Sequence[tuple[int, int, Level]], start: int, end: int) -> Charged:
    """Charge a window of time to what ran in it.

    Args:
        spans: Start, end and level of each operation of one device.
        start: Of the window.
        end: Of the window.

    Returns:
        Times that add up to the window.

    Example:
        >>> charge([(0, 10, 0), (2, 6, 2), (4, 9, 1)], 0, 12)
        Charged(own=(3, 4, 3), idle=((10, 12),))
    """
    own = [0] * len(spans)
    idle: list[tuple[int, int]] = []
    order = sorted(range(len(spans)), key=lambda i: spans[i][0])
    running: list[tuple[int, int, int, int]] = []  # -level, -start, end, number
    now, at = start, 0
    while now < end:
        while at < len(order) and spans[order[at]][0] <= now:
            i = order[at]
            first, last, level = spans[i]
            if last > now:
                heapq.heappush(running, (-level, -first, last, i))
            at += 1
        while running and running[0][2] <= now:
            heapq.heappop(running)
        until = min(end, spans[order[at]][0]) if at < len(order) else end
        if running:
            until = min(until, running[0][2])
            own[running[0][3]] += until - now
        elif until > now:
            idle.append((now, until))
        now = until
    return Charged(tuple(own), tuple(idle))


def covered(spans: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """How much of a window some intervals cover together.

    Args:
        spans: Start and end of each, in the order of their starts.
        start: Of the window.
        end: Of the window.

    Returns:
        The length.

    Example:
        >>> covered([(0, 4), (2, 6), (8, 20)], 1, 10)
        7
    """
    total, reached = 0, start
    for first, last in spans:
        if first >= end:
            break
        last = min(last, end)
        if last > max(first, reached):
            total += last - max(first, reached)
            reached = last
    return total
