"""What is large and whole on every device."""

from profiling._findings.replicated import large_replicated
from tests.profiling import finding_pages


def test_a_parameter_with_its_moments():
    found = finding_pages.finding("large-replicated")
    assert found.where == "embed.weight"
    assert found.held_bytes == 3 * 8192 * 512 * 4 + 4  # two moments, and a step count
    assert found.fix is not None
    assert found.fix.parameters == {"embed.weight": ("fsdp", None)}


def test_the_end_is_a_plan_with_it():
    plan = finding_pages.verified("large-replicated").plan
    assert plan is not None
    assert {r.pattern for r in plan.rules} == {"embed.weight", "head.weight"}


def test_where_nothing_is_split_it_is_a_note():
    (found,) = large_replicated(finding_pages.case("reshard-between-annotations")) or [
        None
    ]
    assert found is None  # it has no parameter
    assert large_replicated(finding_pages.case("synchronous")) == []
