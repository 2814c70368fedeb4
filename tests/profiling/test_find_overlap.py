"""Collectives that compute waits for."""

import dataclasses

from profiling._case import Case
from profiling._find_overlap import synchronous
from tests.profiling import field_case, finding_pages


def test_where_every_matmul_depends_on_it():
    found = finding_pages.finding("synchronous")
    assert (found.where, found.severity) == ("data", "note")
    assert found.why[0].startswith("all matmuls feed")
    assert "7 tensors at once" in found.why[1]


def test_where_there_is_other_work():
    by_where = {f.where: f for f in synchronous(Case(*field_case.compiled()))}
    found = by_where["scheduling"]
    assert "us of matmuls neither feed" in found.why[0]
    assert found.fix is not None
    assert found.fix.change.flags == (
        ("xla_gpu_enable_latency_hiding_scheduler", True),
    )
    assert not set(found.collectives) & set(by_where["data"].collectives)


def test_nothing_without_a_timeline():
    program, schedule = finding_pages.compiled("synchronous")
    bare = tuple(
        dataclasses.replace(c, exposed_s=None, total_s=None)
        for c in schedule.collectives
    )
    blind = dataclasses.replace(schedule, timeline=None, collectives=bare)
    assert synchronous(Case(program, blind)) == []
