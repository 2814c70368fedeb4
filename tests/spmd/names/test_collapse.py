from __future__ import annotations

import itertools
import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spmd._names.collapse import collapse, ranges, star_form


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0,1"),
        ([2, 0, 1], "0-2"),
        ([0, 1, 2, 3, 16, 17, 18, 30], "0-3,16-18,30"),
        ([5, 5, 5], "5"),
    ],
)
def test_ranges(values: list[int], text: str) -> None:
    assert ranges(values) == text


@given(st.sets(st.integers(0, 200)))
def test_ranges_lose_nothing(values: set[int]) -> None:
    found: set[int] = set()
    for run in filter(None, ranges(values).split(",")):
        first, _, last = run.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == values


def test_star_form() -> None:
    assert (
        star_form("model.layers.12.mlp.experts.3.w1")
        == "model.layers.*.mlp.experts.*.w1"
    )
    assert star_form("conv1.weight") == "conv1.weight"
    assert star_form("") == ""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["norm", "layers.0.w", "layers.1.w"], ("norm", "layers.{0,1}.w")),
        (["layers.7.w"], ("layers.7.w",)),
        (
            [f"l.{i}.e.{j}" for i in range(4) for j in range(8)],
            ("l.{0..3}.e.{0..7}",),
        ),
        (["l.0.e.0", "l.0.e.1", "l.1.e.0"], ("l.0.e.{0,1}", "l.1.e.0")),
        (["", "a"], ("", "a")),
    ],
)
def test_collapse(names: list[str], expected: tuple[str, ...]) -> None:
    assert collapse(names) == expected


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_collapse_covers_exactly_its_names(pairs: set[tuple[int, int]]) -> None:
    names = [f"layers.{i}.experts.{j}.w" for i, j in sorted(pairs)]
    found = [name for text in collapse(names) for name in expand(text)]
    assert sorted(found) == sorted(names)


def expand(text: str) -> list[str]:
    pieces = []
    for piece in re.split(r"(\{[^}]*\})", text):
        if not piece.startswith("{"):
            pieces.append([piece])
            continue
        values: list[str] = []
        for run in piece[1:-1].split(","):
            first, _, last = run.partition("..")
            values += map(str, range(int(first), int(last or first) + 1))
        pieces.append(values)
    return ["".join(choice) for choice in itertools.product(*pieces)]
