"""Weights that are gathered for each of their uses."""

import torch

from profiling._findings.case import Case
from profiling._findings.weights import weights_gathered_again
from tests.profiling import finding_pages, micro_batched


def test_gathers_and_bytes_of_one_layer_applied_four_times():
    found = finding_pages.finding("weight-gathered-again")
    assert "gathered 5 times" in found.what
    assert found.wire_bytes == 5 * 512 * 512 * 4 * 7 // 8
    assert found.fix is not None
    assert found.fix.change.values == ((0, (None, None)),)


def test_afterwards_it_is_gathered_once():
    found = finding_pages.finding("weight-gathered-again", after=True)
    assert found.fix is not None and found.fix.proof is not None
    assert found.fix.proof.after.weight_gather_bytes == 512 * 512 * 4 * 7 // 8


def test_once_forward_and_once_backward_is_the_bargain():
    assert weights_gathered_again(finding_pages.case("synchronous")) == []
    assert weights_gathered_again(finding_pages.case("tensor-across-hosts")) == []


def test_what_is_used_once_is_gathered_by_others_choice():
    """Such as rematerialisation: no line of the step's keeps it whole in between."""
    case = Case(*finding_pages.compiled("weight-gathered-again"))
    assert len(case.forward_dots) == 4 and weights_gathered_again(case)
    case.forward_dots = case.forward_dots[:1]
    assert weights_gathered_again(case) == []


def test_micro_batches_that_gather_for_themselves_are_a_note():
    """Whole weights over all of the step are what FSDP is there to save."""
    (found,) = weights_gathered_again(micro_batched.layers(torch.bfloat16))
    assert found.severity == "note"
    assert "the uses read nothing of each other" in found.why[2]
    turns = finding_pages.finding("weight-gathered-again")
    assert turns.is_problem and len(turns.why) == 2
