import pytest

from profiling._collectives.totals import By, Total, by_axes_and_role, totals
from tests.profiling.schedules import COLLECTIVES, collective, moved

WHOLE = 3 * 96 + 400 + 12


def test_by_role():
    found = totals(COLLECTIVES, "role")
    assert found == (
        Total("gradient reduction", 1, 1, 300, 3.0, 0.0),
        Total("weight gather", 1, 3, 288, 1.0, 2.0),
        Total("scalar", 1, 1, 100, 1.0, 0.0),
        Total("unknown", 1, 1, 12, 0.0, 0.5),
    )


def test_by_axes():
    found = {t.key: t.step_wire_bytes for t in totals(COLLECTIVES, "axes")}
    assert found == {"fsdp": 688, "{{0,1},{2,3}}": 12}


@pytest.mark.parametrize("by", ["role", "axes", "kind", "phase", "link"])
def test_they_add_up(by: By):
    found = totals(COLLECTIVES, by)
    assert sum(t.step_wire_bytes for t in found) == WHOLE
    assert sum(t.exposed_s or 0 for t in found) == pytest.approx(5.0)
    assert sum(t.hidden_s or 0 for t in found) == pytest.approx(2.5)
    sizes = [t.step_wire_bytes for t in found]
    assert sizes == sorted(sizes, reverse=True)


def test_by_several_things():
    found = dict(by_axes_and_role(COLLECTIVES))
    assert found["fsdp", "scalar", "nvlink"].step_wire_bytes == 100
    assert found["{{0,1},{2,3}}", "unknown", "ib"].key == "{{0,1},{2,3}}, unknown, ib"
    named = dict(by_axes_and_role(COLLECTIVES, lambda c: "all"))
    assert {axes for axes, *_ in named} == {"all"}


def test_without_a_timeline_there_are_no_times():
    (found,) = totals([collective("a")], "kind")
    assert (found.exposed_s, found.hidden_s) == (None, None)


def test_time_is_split_evenly_where_nothing_is_sent():
    what = (moved("scalar", 0), moved("input", 0))
    alone = collective("a", *what, total_s=1.0, hidden_s=0.0, exposed_s=1.0)
    assert [t.exposed_s for t in totals([alone], "role")] == [0.5, 0.5]


def test_nothing_else():
    with pytest.raises(ValueError, match="totals by 'size': one of role, axes, kind"):
        totals(COLLECTIVES, "size")
    assert totals([], "role") == ()
