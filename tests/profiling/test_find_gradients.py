"""Gradients that are reduced whole or too often."""

from profiling._find_gradients import (
    gradients_all_reduced,
    gradients_per_micro_batch,
    weight_gradients,
)
from tests.profiling import finding_pages


def test_the_annotation_that_makes_a_gradient_whole():
    found = finding_pages.finding("gradient-all-reduced")
    assert found.where == "weight"
    # An all-reduce over 8 sends 2 x 7/8 of the gradient.
    assert found.wire_bytes == 2 * 512 * 512 * 4 * 7 // 8
    assert "an annotation of its gradient" in found.why[1]
    assert found.fix is not None
    ((number, spec),) = found.fix.change.annotations
    op = finding_pages.case("gradient-all-reduced").ops.ops[number]
    assert spec == ("fsdp", None) and op.sharding == "{replicated}"


def test_uneven_gradients_are_a_matter_of_padding():
    assert gradients_all_reduced(finding_pages.case("padding-waste")) == []


def test_micro_batches_are_uses_that_do_not_read_each_other():
    found = finding_pages.finding("gradient-per-micro-batch")
    assert "3 times in a step of 4 micro-batches" in found.what
    assert found.fix is not None and not found.fix.change
    assert gradients_per_micro_batch(finding_pages.case("weight-gathered-again")) == []
    assert gradients_per_micro_batch(finding_pages.case("synchronous")) == []


def test_matmuls_that_make_a_gradient():
    case = finding_pages.case("gradient-per-micro-batch")
    found = weight_gradients(case, case.values["weight"])
    assert len(found) == 4
    assert {op.shape for op in found} == {(512, 512)}
