"""Axes whose traffic crosses hosts."""

import dataclasses

from profiling._findings.case import Case
from profiling._findings.hosts import tensor_across_hosts
from spmd import Mesh
from tests.profiling import finding_pages


def test_the_axis_is_put_innermost():
    found = finding_pages.finding("tensor-across-hosts")
    assert (found.where, found.axes, found.link) == ("tensor", ("tensor",), "ib")
    assert found.wire_bytes == 1024 * 512 * 4  # all of it to one other device
    assert "8 devices apart" in found.why[0]
    assert found.fix is not None
    assert found.fix.change.mesh == Mesh({"fsdp": 8, "tensor": 2})
    assert found.fix.code == 'mesh = spmd.Mesh({"fsdp": 8, "tensor": 2})'


def test_nothing_on_one_host():
    assert tensor_across_hosts(finding_pages.case("many-small")) == []


def test_an_axis_that_is_too_long_is_said():
    program, schedule = finding_pages.compiled("tensor-across-hosts")
    far = [dataclasses.replace(c, crosses_hosts=True) for c in schedule.collectives]
    far = [dataclasses.replace(c, axes=("tensor", "x")[:1]) for c in far]
    case = Case(program, dataclasses.replace(schedule, collectives=tuple(far)))
    case.mesh = Mesh({"tensor": 16})
    (found,) = tensor_across_hosts(case)
    assert found.fix is None
    assert "has 16 devices: at most 8 stand together" in found.why[-1]
