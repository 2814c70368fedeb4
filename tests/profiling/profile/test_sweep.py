"""Charging time: it adds up, whatever overlaps."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling._profile.sweep import COMPUTES, HOLDS, MOVES, charge, covered

SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 30), st.sampled_from((0, 1, 2))),
    max_size=12,
).map(lambda found: [(a, a + n, level) for a, n, level in found])


@given(SPANS, st.integers(0, 20), st.integers(20, 80))
def test_it_adds_up_to_the_window(spans, start, end):
    found = charge(spans, start, end)
    idle = sum(last - first for first, last in found.idle)
    assert sum(found.own) + idle == end - start
    assert all(
        0 <= own <= b - a for own, (a, b, _) in zip(found.own, spans, strict=True)
    )


@given(SPANS, st.integers(0, 20), st.integers(20, 80))
def test_it_is_what_looking_at_every_instant_gives(spans, start, end):
    expected: Counter[tuple[int, int]] = Counter()  # by level and start
    for t in range(start, end):
        running = [(level, a) for a, b, level in spans if a <= t < b]
        if running:
            expected[max(running)] += 1
    found: Counter[tuple[int, int]] = Counter()
    for (a, _, level), own in zip(spans, charge(spans, start, end).own, strict=True):
        found[level, a] += own
    assert +found == expected


@pytest.mark.parametrize(
    ("spans", "own"),
    [
        # A collective beside compute is charged only where that does not run.
        ([(0, 10, MOVES), (2, 6, COMPUTES)], (6, 4)),
        # A loop is charged what its body leaves.
        ([(0, 10, HOLDS), (1, 4, COMPUTES), (4, 9, MOVES)], (2, 3, 5)),
        # Of two streams the one that started last, which is also the innermost.
        ([(0, 10, COMPUTES), (3, 12, COMPUTES)], (3, 9)),
    ],
    ids=["beside compute", "loop", "two streams"],
)
def test_who_is_charged(spans, own):
    assert charge(spans, 0, max(end for _, end, _ in spans)).own == own


def test_what_is_outside_the_window_is_not_charged():
    found = charge([(0, 5, COMPUTES), (8, 30, COMPUTES)], 2, 10)
    assert (found.own, found.idle) == ((3, 2), ((5, 8),))


@given(SPANS, st.integers(0, 20), st.integers(20, 80))
def test_covered_counts_each_instant_once(spans, start, end):
    intervals = sorted((a, b) for a, b, _ in spans)
    every = {t for a, b in intervals for t in range(max(a, start), min(b, end))}
    assert covered(intervals, start, end) == len(every)
