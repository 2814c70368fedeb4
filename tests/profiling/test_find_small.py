"""Many collectives that move little."""

from profiling._find_small import many_small
from tests.profiling import finding_pages


def test_a_chain_of_small_sums():
    found = finding_pages.finding("many-small")
    assert found.where == "reduce-scatter over tensor"
    assert found.what.startswith("39 times")
    assert found.wire_bytes == 39 * 16 * 64 * 4 * 7 // 8


def test_few_are_not_many():
    assert many_small(finding_pages.case("tensor-across-hosts")) == []
