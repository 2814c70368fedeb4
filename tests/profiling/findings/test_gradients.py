"""Gradients that are reduced whole or too often."""

from profiling._findings.gradients import gradients_all_reduced, weight_gradients
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


def test_what_is_scattered_is_fine():
    case = finding_pages.case("gradient-per-micro-batch")
    assert "reduce-scatter" in {c.kind for c in case.schedule.collectives}
    assert gradients_all_reduced(case) == []


def test_uneven_gradients_are_a_matter_of_padding():
    assert gradients_all_reduced(finding_pages.case("padding-waste")) == []


def test_matmuls_that_make_a_gradient():
    case = finding_pages.case("gradient-per-micro-batch")
    found = weight_gradients(case, case.values["weight"])
    assert len(found) == 4
    assert {op.shape for op in found} == {(512, 512)}
