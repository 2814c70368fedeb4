"""Many collectives that move little."""

import dataclasses

from profiling._findings.case import Case
from profiling._findings.small import many_small
from tests.profiling import finding_pages


def test_a_chain_of_small_sums():
    found = finding_pages.finding("many-small")
    assert found.where == "reduce-scatter over tensor"
    assert found.what.startswith("39 times")
    assert found.wire_bytes == 39 * 16 * 64 * 4 * 7 // 8


def test_weights_that_are_small_may_be_whole():
    fix = finding_pages.finding("many-small").fix
    assert fix is not None
    # The last layer's sum is an all-reduce, but its weight is like the others.
    assert dict(fix.change.inputs) == {f"{i}.weight": (None, None) for i in range(40)}
    assert fix.code == 'plan = spmd.Plan({"*.weight": (None, None)}) | plan'


def test_large_weights_stay_split():
    case = finding_pages.case("many-small")
    wide = [
        dataclasses.replace(v, shape=(1024, 1024)) if v.role == "parameter" else v
        for v in case.program.inputs
    ]
    program = dataclasses.replace(case.program, inputs=tuple(wide))
    bare = dataclasses.replace(case.schedule, compiled=None)
    (found,) = many_small(Case(program, bare))
    assert found.fix is None


def test_few_are_not_many():
    assert many_small(finding_pages.case("tensor-across-hosts")) == []


def test_many_that_are_large_are_not_small():
    program, schedule = finding_pages.compiled("many-small")
    large = tuple(
        dataclasses.replace(c, wire_bytes=1 << 30) for c in schedule.collectives
    )
    schedule = dataclasses.replace(schedule, collectives=large)
    assert many_small(Case(program, schedule)) == []
