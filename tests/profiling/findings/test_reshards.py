"""Pairs of annotations."""

import pytest

from profiling._findings.reshards import between, reshards, turns
from tests.profiling import finding_pages


def test_the_pair_and_the_way_between():
    case = finding_pages.case("reshard-between-annotations")
    (turn,) = [t for t in turns(case) if t.wanted == (None, "b")]
    assert turn.given == (("b", "a"), None)
    assert [op.name for op in turn.between][-1] == "multiply"
    (found,) = [f for f in reshards(case) if f.is_problem]
    assert found.wire_bytes == 4096 * 512 * 4 * 7 // 8  # whole on 8 devices
    assert found.fix is not None
    assert found.fix.code.startswith("turned = spmd.mark_sharding(turned * 1")
    assert found.fix.change.before == ((turn.second.number, ("b", None)),)


def test_what_the_annotations_ask_for_is_a_note():
    notes = reshards(finding_pages.case("wide-dtype"))
    assert notes and not any(f.is_problem for f in notes)
    assert all(f.wanted and f.fix is None for f in notes)


@pytest.mark.parametrize(
    ("given", "wanted", "middle"),
    [
        ((("b", "a"), None), (None, "b"), ("b", None)),
        ((("a", "b"), None), (None, ("a",)), ("a", None)),
        (("a", None), (None, "a"), None),
        (("a", None), (None, None), None),
        (("a", "b"), (None, "a"), ("a", None)),
    ],
)
def test_a_spec_between(given, wanted, middle):
    assert between(given, wanted) == middle
