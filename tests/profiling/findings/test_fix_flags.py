"""Flags that are tried against waiting."""

import dataclasses

from profiling import Target
from profiling._findings.case import Case
from profiling._findings.fix_flags import flags_text, overlap_fixes
from tests.profiling import finding_pages

RS = "xla_gpu_reduce_scatter_combine_threshold_bytes"
ESTIMATOR = "xla_gpu_enable_analytical_latency_estimator"


def case_with(**given) -> Case:
    program, schedule = finding_pages.compiled("synchronous")
    return Case(program, dataclasses.replace(schedule, **given))


def test_the_preset_the_estimator_and_both():
    preset, estimator, both = overlap_fixes(case_with())
    assert [name for name, _ in preset.change.flags] == [RS]
    assert estimator.change.flags == ((ESTIMATOR, True),)
    assert both.change.flags == preset.change.flags + estimator.change.flags
    assert estimator.code == f'XLA_FLAGS="--{ESTIMATOR}=true"'
    assert "environment" in both.place


def test_what_is_set_already_is_not_tried_again():
    (left,) = overlap_fixes(case_with(flags={ESTIMATOR: False}))
    assert [name for name, _ in left.change.flags] == [RS]
    assert overlap_fixes(case_with(flags={ESTIMATOR: True, RS: 1})) == ()


def test_tpus_have_their_own_variable_and_cpus_none():
    for fix in overlap_fixes(case_with(target=Target.parse("v5e:2x4"))):
        assert fix.code.startswith("LIBTPU_INIT_ARGS=")
    assert overlap_fixes(case_with(target=Target.parse("cpu:8"))) == ()
    assert overlap_fixes(case_with(target=None)) == ()


def test_values_as_the_environment_has_them():
    flags = {"xla_a": True, "xla_b": False, "xla_c": 0, "xla_d": "x"}
    assert flags_text(flags) == "--xla_a=true --xla_b=false --xla_c=0 --xla_d=x"
