"""Weights that are gathered for each of their uses."""

from profiling._findings.weights import weights_gathered_again
from tests.profiling import finding_pages


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
