"""`Adapted`: which modules a plan computes in another way."""

from __future__ import annotations

import pytest

from spmd import Plan
from spmd._adapt.rule import Adapted, adapted_modules
from spmd._plans.rule import PlanPart

MODULES = ("layers.0.attn", "layers.1.attn", "layers.1.mlp")


def part(*adapted):
    return PlanPart("own", (), adapted=adapted)


def test_by_pattern_and_the_first_part_wins():
    first = Adapted("layers.1.attn", "repeat_heads", 8)
    second = Adapted("layers.*.attn", "repeat_heads", 4)
    found = adapted_modules([part(first), part(second)], MODULES)
    assert found == {"layers.1.attn": first, "layers.0.attn": second}


def test_an_unknown_way():
    with pytest.raises(ValueError, match="'a' is adapted by 'shrink'; one of 'unfl"):
        Adapted("a", "shrink")  # pyright: ignore[reportArgumentType] - the point


def test_written_and_read():
    plan = Plan._of([part(Adapted("layers.*", "unflatten"))])
    assert "adapted:\n  layers.*:\n    unflatten: 0\n" in plan.to_yaml()
    assert Plan.from_yaml(plan.to_yaml()) == plan


@pytest.mark.parametrize("text", ["{a: 4}", "{a: {shrink: 4}}", "{a: {unflatten: x}}"])
def test_malformed_text(text):
    with pytest.raises(
        ValueError, match="'adapted' one of pattern to a way and a size"
    ):
        Plan.from_yaml(f"parameters: {{}}\nadapted: {text}\n")
