"""Dims that do not divide."""

import dataclasses

from profiling._findings.case import Case
from profiling._findings.padding import padding_waste
from tests.profiling import finding_pages


def test_share_and_bytes():
    found = finding_pages.finding("padding-waste")
    assert found.what.startswith("44% of what devices hold of weight")
    assert found.held_bytes == 3 * 7 * 16384 * 4 // 8  # 16 - 9 rows, 3 tensors
    assert found.fix is not None
    assert found.fix.parameters == {"weight": (None, "fsdp")}
    assert found.advice == ""


def test_where_no_dim_divides_the_size_has_to_change():
    program, schedule = finding_pages.compiled("padding-waste")
    inputs = tuple(
        dataclasses.replace(v, shape=(9, 16383)) if v.shape == (9, 16384) else v
        for v in program.inputs
    )
    outputs = tuple(
        dataclasses.replace(v, shape=(9, 16383)) if v.shape == (9, 16384) else v
        for v in program.outputs
    )
    made = dataclasses.replace(program, inputs=inputs, outputs=outputs)
    case = Case(made, dataclasses.replace(schedule, compiled=None))
    (found,) = padding_waste(case)
    assert found.fix is None
    assert found.advice.startswith("make dim 0 of weight a multiple")
    assert found.advice.endswith("16 instead of 9")


def test_nothing_where_all_divides():
    assert padding_waste(finding_pages.case("synchronous")) == []
