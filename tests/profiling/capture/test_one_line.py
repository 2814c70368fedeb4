"""Operations that overlap, put where xprof finds what they are charged."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling._capture.one_line import one_line
from profiling._profile.sweep import charge


def own_times(spans):
    """Own times as xprof has them: less what lies within, directly."""
    found = [end - start for start, end in spans]
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1]))
    within = []
    for i in order:
        start, end = spans[i]
        while within and not (
            spans[within[-1]][0] <= start and end <= spans[within[-1]][1]
        ):
            within.pop()
        if within:
            found[within[-1]] -= end - start
        within.append(i)
    return found


def by_span(spans, own):
    found = Counter()
    for span, length in zip(spans, own, strict=True):
        found[span] += length
    return found


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([(3, 5, 2), (5, 9, 2)], [(3, 5), (5, 9)]),
        ([(0, 9, 0), (1, 4, 2), (4, 8, 1)], [(0, 9), (1, 4), (4, 8)]),
        ([(0, 9, 0), (1, 8, 0), (2, 3, 2)], [(0, 9), (1, 8), (2, 3)]),
        ([(0, 10, 1), (2, 5, 2)], [(0, 7), (7, 10)]),
        ([(0, 6, 2), (4, 9, 2), (9, 10, 2)], [(0, 4), (4, 9), (9, 10)]),
        ([(0, 6, 0), (4, 9, 2)], [(0, 4), (4, 9)]),
    ],
    ids=["none", "apart", "loop", "loops", "hidden", "side by side", "loop that ends"],
)
def test_where_they_lie(spans, expected):
    assert one_line(spans) == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 20), st.sampled_from((0, 1, 2)))
    )
)
def test_their_own_times_are_what_they_are_charged(drawn):
    spans = sorted(
        ((start, start + length, level) for start, length, level in drawn),
        key=lambda span: (span[0], -span[1]),
    )
    found = one_line(spans)
    end = max((end for _, end, _ in spans), default=0)
    # Of two that are alike either may have it.
    assert by_span(spans, own_times(found)) == by_span(spans, charge(spans, 0, end).own)
    assert all(0 <= first <= last <= end for first, last in found)
