"""Rows that every device is given, or computes."""

import dataclasses

import torch

import profiling
import spmd
from profiling._collectives.splits import Split
from profiling._findings.batch import batch_replicated, rows_computed_twice
from profiling._findings.case import Case
from spmd import Program
from tests.profiling import finding_pages
from tests.profiling.compilers import need


def with_specs(**specs) -> Case:
    """The page's case with other specs of the batch."""
    program, schedule = finding_pages.compiled("batch-replicated")
    inputs = tuple(
        dataclasses.replace(v, spec=specs.get(v.name, v.spec)) for v in program.inputs
    )
    made: Program = dataclasses.replace(program, inputs=inputs)
    return Case(made, dataclasses.replace(schedule, compiled=None))


def test_what_is_held_for_nothing():
    found = finding_pages.finding("batch-replicated")
    assert found.tensors == ("x",)
    assert found.held_bytes == 4096 * 512 * 4 * 7 // 8
    assert found.fix is not None
    assert found.fix.change.inputs == (("x", ("fsdp", None)),)
    assert found.fix.code == 'batch = spmd.shard_batch(batch, mesh, ("fsdp", None))'


def test_where_nothing_is_split_all_compute_the_same():
    (found,) = batch_replicated(with_specs(x=(None, None), y=(None, None)))
    assert set(found.tensors) == {"x", "y"}
    assert "all 8 compute the same" in found.what


def test_rows_that_do_not_divide_stay_whole():
    case = with_specs(x=(None, None), y=(None, None))
    inputs = tuple(
        dataclasses.replace(v, shape=(4095, 512)) if v.role == "input" else v
        for v in case.program.inputs
    )
    program = dataclasses.replace(case.program, inputs=inputs)
    assert batch_replicated(Case(program, case.schedule)) == []


def test_nothing_where_all_is_split():
    assert batch_replicated(with_specs(x=("fsdp", None))) == []
    assert rows_computed_twice(finding_pages.case("synchronous")) == []


def test_rows_of_a_whole_weight_that_are_computed_by_all():
    mesh = spmd.Mesh({"data": 8})
    with spmd.meta_parameters():
        model = torch.nn.Linear(256, 256, bias=False)
    spmd.shard_module(model, mesh, spmd.Plan({"weight": (None, None)}))

    def step(x: torch.Tensor) -> torch.Tensor:
        h = x.tanh()
        spmd.mark_sharding(h, mesh, (None, None))  # all rows everywhere
        return model(h)

    x = torch.empty(1024, 256, device="meta")
    program = spmd.trace(step, x, model=model, mesh=mesh, batch_spec=("data", None))
    schedule = profiling.compile(program, need("h100:1x8"))
    case = Case(program, schedule)
    (found,) = rows_computed_twice(case)
    assert found.what.endswith("computes the same [1024, 256] on 8 devices")
    first, second = found.fixes
    ((number, spec),) = first.change.annotations
    assert case.ops.ops[number].sharding and spec == ("data", None)
    assert first.code == 'spmd.mark_sharding(h, mesh, ("data", None))'
    assert second.change.values[0][1] == ("data", None)
    fix = profiling.verify(program, schedule, [found]).findings[0].fix
    assert fix is not None and fix.text == first.text and fix.proof is not None
    assert fix.proof.gone and set(fix.proof.gains) == {"bytes", "memory", "time"}
    assert fix.proof.after.flops == (fix.proof.before.flops or 0) / 8
    ((op, _),) = case.forward_dots  # each device computes features of its own instead
    case.splits._found[op] = Split(piece=(1024, 32), ways=(1, 8), sums=1)
    assert rows_computed_twice(case) == []


def test_a_whole_weight_is_no_reason():
    assert rows_computed_twice(finding_pages.case("large-replicated")) == []
    assert rows_computed_twice(finding_pages.case("gradient-all-reduced")) == []
