"""Put operations of one device on one line, on which each has time of its own.

xprof takes for an operation's own time what is left of it by those that lie within it.
Two that overlap would both count in full, and all together be longer than the device
worked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from profiling._profile.sweep import HOLDS, Level, charge

Span = tuple[int, int, Level]


def one_line(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Where operations lie on one line.

    Args:
        spans: Start, end and level of each operation of one device, by their starts.

    Returns:
        Start and end of each: as it was where nothing overlaps but loops with what they
        hold. Where others overlap, all that touch each other stand one behind the
        other, each as long as it is charged for.

    Example:
        >>> one_line([(0, 4, 2), (5, 15, 1), (7, 9, 2), (20, 30, 0), (21, 25, 2)])
        [(0, 4), (5, 13), (13, 15), (20, 30), (21, 25)]
    """
    found: list[tuple[int, int]] = []
    for first, last in _together(spans):
        part = spans[first:last]
        if _is_nested(part):
            found += [(start, end) for start, end, _ in part]
            continue
        at = part[0][0]
        for own in charge(part, at, max(end for _, end, _ in part)).own:
            found.append((at, at + own))
            at += own
    return found


def _together(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Ranges of spans that overlap one by one."""
    starts: list[int] = []
    reached = None
    for i, (start, end, _) in enumerate(spans):
        if reached is None or start >= reached:
            starts.append(i)
        reached = end if reached is None else max(reached, end)
    return list(pairwise([*starts, len(spans)]))


def _is_nested(spans: Sequence[Span]) -> bool:
    """Whether only what holds others has others in it, and those wholly."""
    open_: list[Span] = []
    for span in spans:
        while open_ and open_[-1][1] <= span[0]:
            open_.pop()
        if open_ and (open_[-1][2] != HOLDS or span[1] > open_[-1][1]):
            return False
        open_.append(span)
    return True
