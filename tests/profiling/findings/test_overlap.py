"""Collectives that compute waits for."""

import dataclasses

from profiling._findings.case import Case
from profiling._findings.overlap import synchronous
from tests.profiling import field_case, finding_pages, judged_steps


def test_where_every_matmul_depends_on_it():
    by_where = {f.where: f for f in synchronous(finding_pages.case("synchronous"))}
    found = by_where["data"]
    assert found.severity == "note" and len(found.collectives) == 1
    assert found.why == (f"all matmuls feed {found.collectives[0]} or need its result",)


def test_one_that_moves_several_tensors_is_said():
    (found,) = (
        f
        for f in finding_pages.explained("gradient-per-micro-batch")
        if (f.kind, f.where) == ("synchronous", "data")
    )
    assert "it moves 4 tensors at once" in found.why[1]


def test_where_there_is_other_work():
    by_where = {f.where: f for f in synchronous(Case(*field_case.compiled()))}
    found = by_where["scheduling"]
    assert "us of matmuls neither feed" in found.why[0]
    assert all(fix.change.flags for fix in found.fixes)
    assert {f.text for f in found.fixes} == {f.text for f in by_where["data"].fixes}
    assert not set(found.collectives) & set(by_where["data"].collectives)


def test_in_a_loop():
    (found,) = synchronous(judged_steps.looped())
    (name,) = found.collectives
    assert found.where == "data"
    assert found.why[0] == f"all matmuls of its loop feed {name} or need its result"


def test_nothing_without_a_timeline():
    program, schedule = finding_pages.compiled("synchronous")
    bare = tuple(
        dataclasses.replace(c, exposed_s=None, total_s=None)
        for c in schedule.collectives
    )
    blind = dataclasses.replace(schedule, timeline=None, collectives=bare)
    assert synchronous(Case(program, blind)) == []
