"""Sums of collectives."""

from profiling._findings.sums import cost_of
from tests.profiling import field_case


def test_sums_and_order():
    _, schedule = field_case.compiled()
    moving = [c for c in schedule.collectives if c.role == "gradient reduction"]
    cost = cost_of(moving, module="first")
    assert cost["wire_bytes"] == sum(c.step_wire_bytes for c in moving)
    assert cost["exposed_s"] == sum(c.exposed_s or 0.0 for c in moving)
    assert cost["modules"][0] == "first"
    assert cost["link"] == "ib"  # the slower of two
    assert cost["collectives"][0] == max(moving, key=lambda c: c.step_wire_bytes).name
