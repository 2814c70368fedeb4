"""Fixes as changes of the trace and as lines; what they do is in test_micro_batches."""

import ast

import pytest
import torch

from profiling._findings.case import Case
from profiling._findings.finding import Fix
from profiling._findings.gradient_parts import GradientParts
from profiling._findings.micro_batch_fixes import micro_batch_fixes
from tests.profiling import finding_pages, micro_batched
from tests.profiling.micro_batched import COPIES, SPLIT, WHOLE

BOTH = (("fsdp", "replica"), None)


def fixes(case: Case, *names: str) -> list[Fix]:
    """Those for some parameters; each line is Python."""
    parts = GradientParts(case)
    found = micro_batch_fixes(case, {n: parts.of(n) for n in names})
    for fix in found:
        ast.parse(fix.code)
    return found


def test_as_the_weight_is_split():
    (fix,) = fixes(finding_pages.case("gradient-per-micro-batch"), "weight")
    assert fix.text == "split the gradient of weight where it is made"
    assert {spec for _, spec in fix.change.values} == {SPLIT}
    assert fix.change.widened == () and fix.change.annotations == ()


@pytest.mark.slow
def test_over_the_other_axes_of_the_batch_too():
    case = micro_batched.layers(mesh=COPIES)
    first, second = fixes(case, "0.weight")
    assert {spec for _, spec in first.change.values} == {SPLIT}
    assert {spec for _, spec in second.change.values} == {BOTH}
    assert second.text.endswith("where it is made, over replica too")
    assert second.code.endswith('grad=(("fsdp", "replica"), None))')
    _, both = fixes(case, "0.weight", "1.weight")
    assert "for p in model.parameters()" in both.code
    assert len(both.change.values) == 8


@pytest.mark.slow
def test_products_are_widened():
    (fix,) = fixes(micro_batched.layers(torch.bfloat16), "0.weight")
    assert len(fix.change.widened) == 4
    assert fix.text.endswith("and make it in f32, in which it is kept")
    assert fix.code.startswith("model = FSDPv2(model, mesh, mixed_precision=")


@pytest.mark.slow
def test_a_sum_is_whole_in_its_loop():
    case = micro_batched.looped(start=SPLIT)
    (part,) = GradientParts(case).of("weight")
    assert part.loop is not None
    (fix,) = fixes(case, "weight")
    assert fix.change.values == (
        (part.loop.left.number, SPLIT),  # after the next one, which is put before it
        (part.loop.left.number, WHOLE),
        (part.loop.added.number, WHOLE),
        (part.loop.entered.number, WHOLE),
    )
    (start,) = part.loop.entered.operands
    assert fix.change.annotations == ((start.number, WHOLE),)
