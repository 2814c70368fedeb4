"""What is added up to a gradient is found through the optimizer's formulas."""

import pytest
import torch

from profiling._findings.gradient_parts import GradientParts
from tests.profiling import finding_pages, micro_batched


def test_one_part_for_each_micro_batch():
    case = finding_pages.case("gradient-per-micro-batch")
    parts = GradientParts(case).of("weight")
    assert len(parts) == 4
    assert {p.made.name for p in parts} == {"dot"}
    assert {p.ready.shape for p in parts} == {(512, 512)}
    assert all(p.loop is None and p.casts == () for p in parts)
    assert [p.made.number for p in parts] == sorted(p.made.number for p in parts)
    assert GradientParts(case).of("no such weight") == ()


def test_one_part_without_micro_batches():
    case = finding_pages.case("gradient-all-reduced")
    (part,) = GradientParts(case).of("weight")
    (annotation,) = part.annotations
    assert annotation.sharding == "{replicated}"


@pytest.mark.slow
def test_casts_stand_between():
    parts = GradientParts(micro_batched.layers(torch.bfloat16)).of("1.weight")
    assert [[c.dtype for c in p.casts] for p in parts] == [["f32"]] * 4
    assert {p.made.dtype for p in parts} == {"bf16"}


@pytest.mark.slow
def test_scatters_and_sums_count_too():
    parts = GradientParts(micro_batched.embedded())
    made = {
        name: {p.made.name for p in parts.of(name)}
        for name in ("embed.weight", "norm.weight", "norm.bias", "head.weight")
    }
    assert made == {
        "embed.weight": {"scatter"},
        "norm.weight": {"reduce"},
        "norm.bias": {"reduce"},
        "head.weight": {"dot"},
    }


@pytest.mark.slow
def test_a_loop_is_one_part():
    (part,) = GradientParts(micro_batched.looped()).of("weight")
    assert part.loop is not None and part.made.name == "dot" and part.made.in_loop
    assert part.loop.added.name == "add"
    assert part.loop.entered.operands == part.loop.left.operands[1:]
