"""Best fit: the size of an arena that holds buffers of known sizes and lives.

After XLA's `GlobalDecreasingSizeBestFitHeap`: the largest first, each in the smallest
gap between those that live at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_EXACT = 20_000
"""Beyond as many, laying out is left and what lives at one time is counted."""


@dataclass(frozen=True, slots=True)
class Block:
    """What needs a place.

    Attributes:
        num_bytes: Its size.
        start: First time at which it lives.
        end: Last time.
    """

    num_bytes: int
    start: int
    end: int


def peak_bytes(blocks: Sequence[Block]) -> int:
    """Most bytes that live at one time; no layout needs less.

    Args:
        blocks: What needs a place.

    Returns:
        Bytes.

    Example:
        >>> peak_bytes([Block(4, 0, 2), Block(8, 2, 3), Block(5, 3, 9)])
        13
    """
    return max(profile(blocks), default=0)


def profile(blocks: Sequence[Block]) -> list[int]:
    """Bytes that live at each time.

    Args:
        blocks: What needs a place.

    Returns:
        One sum for each time from 0 to the last.
    """
    last = max((b.end for b in blocks), default=-1)
    changes = np.zeros(last + 2, dtype=np.int64)
    for block in blocks:
        changes[block.start] += block.num_bytes
        changes[block.end + 1] -= block.num_bytes
    return np.cumsum(changes)[:-1].tolist()


def arena_bytes(blocks: Sequence[Block], *, alignment: int = 1) -> int:
    """Size of the arena, of two orders the better.

    Args:
        blocks: What needs a place.
        alignment: Each starts at a multiple of it.

    Returns:
        Bytes; never less than `peak_bytes`.
    """
    if len(blocks) > MAX_EXACT:
        return peak_bytes(blocks)
    by_size = sorted(blocks, key=lambda b: (-b.num_bytes, b.start - b.end, b.start))
    by_life = sorted(blocks, key=lambda b: (b.start - b.end, -b.num_bytes, b.start))
    return min(_fit(by_size, alignment), _fit(by_life, alignment))


def _fit(blocks: Sequence[Block], alignment: int) -> int:
    count = len(blocks)
    starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    places, tops = np.empty(count, np.int64), np.empty(count, np.int64)
    height = 0
    for i, block in enumerate(blocks):
        meets = (starts[:i] <= block.end) & (ends[:i] >= block.start)
        place = _gap(places[:i][meets], tops[:i][meets], block.num_bytes, alignment)
        starts[i], ends[i] = block.start, block.end
        places[i], tops[i] = place, place + block.num_bytes
        height = max(height, place + block.num_bytes)
    return height


def _gap(places: np.ndarray, tops: np.ndarray, size: int, alignment: int) -> int:
    """The start of the smallest gap; above all where none is large enough."""
    if not len(places):
        return 0
    order = np.argsort(places, kind="stable")
    below = np.maximum.accumulate(np.concatenate([[0], tops[order]]))
    below = -(-below // alignment) * alignment
    room = places[order] - below[:-1]
    fits = np.nonzero(room >= max(size, 1))[0]
    if not len(fits):
        return int(below[-1])
    return int(below[fits[np.argmin(room[fits])]])
