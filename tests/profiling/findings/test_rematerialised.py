"""The partitioner's warnings."""

import dataclasses

from profiling._findings.case import Case
from profiling._findings.rematerialised import rematerialised
from tests.profiling import field_case, finding_pages


def test_a_warning_has_its_specs_its_size_and_its_line():
    found = finding_pages.finding("full-rematerialisation")
    assert found.where == "backward/cast"
    assert "[1600, 1280]" in found.what
    assert found.held_bytes == 1600 * 1280 * 2
    assert found.why[0].endswith('(("fsdp", "replica"), None)')
    assert found.why[1].endswith('(None, "fsdp")')
    assert found.wire_bytes == found.held_bytes * 7 // 8
    assert found.fix is not None and '("fsdp", None)' in found.fix.code
    assert found.sources[0].partition(":")[2].isdigit()


def test_each_warning_is_one_finding_however_often_it_is_said():
    program, schedule = field_case.compiled()
    twice = dataclasses.replace(schedule, warnings=schedule.warnings * 2)
    assert len(rematerialised(Case(program, twice))) == 1


def test_other_warnings_and_unknown_shardings_are_no_trouble():
    program, schedule = finding_pages.compiled("synchronous")
    text = (
        "[SPMD] Involuntary full rematerialization. The compiler cannot go from "
        "sharding {maximal device=3} to {replicated} efficiently for HLO operation "
        "%a.1 = f32[2048,512]{1,0} add(%b, %c)"
    )
    odd = dataclasses.replace(schedule, warnings=("something else", text))
    (found,) = rematerialised(Case(program, odd))
    assert found.where == "a.1" and found.fix is None
    assert found.held_bytes == 2048 * 512 * 4


def test_a_way_that_was_only_weighed_is_a_note():
    """As XLA warned of in a decoder over fsdp and replica: nothing of 2 MiB moves."""
    program, schedule = finding_pages.compiled("synchronous")
    text = (
        "[SPMD] Involuntary full rematerialization. The compiler cannot go from "
        "sharding {devices=[8,1,1]<=[8]} to {devices=[1,1,8]<=[8]} efficiently for HLO "
        "operation %fake_parameter.2 = f32[4,64,256]{2,1,0} parameter(2)"
    )
    odd = dataclasses.replace(schedule, warnings=(text,))
    (found,) = rematerialised(Case(program, odd))
    assert found.held_bytes == 32 * 64 * 256 * 4 >= 1 << 20
    assert found.severity == "note" and "only weighed" in found.why[-1]
