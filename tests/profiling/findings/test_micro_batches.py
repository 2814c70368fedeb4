"""Gradients that are reduced for each micro-batch, and what has them reduced once."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import profiling
from profiling import Change, Finding, Schedule
from profiling._findings.case import Case
from profiling._findings.micro_batches import (
    gradients_per_micro_batch,
    num_micro_batches,
)
from profiling._findings.verify import figures
from tests.profiling import finding_pages, micro_batched
from tests.profiling.micro_batched import COPIES, SPLIT

PAGE = "gradient-per-micro-batch"


def reductions(schedule: Schedule, name: str) -> list[tuple[int, tuple[str, ...], str]]:
    """Runs, axes and dtype of what reduces a weight's gradient."""
    return [
        (c.num_runs, c.axes, c.dtype)
        for c in schedule.collectives
        for m in c.moved
        if m.role == "gradient reduction" and m.tensor == name
    ]


def proven(case: Case) -> tuple[Finding, Schedule]:
    """The one finding with its fix, and the step with it."""
    found = gradients_per_micro_batch(case)
    verified = profiling.verify(case.program, case.schedule, found)
    (first,) = verified.findings
    target = case.schedule.target
    assert target is not None
    return first, profiling.compile(verified.program, target)


def test_micro_batches_are_uses_that_do_not_read_each_other():
    found = finding_pages.finding(PAGE)
    assert "3 times in a step of 4 micro-batches" in found.what
    (fix,) = found.fixes
    case = finding_pages.case(PAGE)
    marked = [(case.ops.ops[n], spec) for n, spec in fix.change.values]
    assert len(marked) == 4 and {spec for _, spec in marked} == {("fsdp", None)}
    assert {op.shape for op, _ in marked} == {(512, 512)}
    assert fix.code == (
        'spmd.mark_sharding(model.weight, mesh, ("fsdp", None), grad=("fsdp", None))'
    )
    assert found.tensors == ("weight",)
    assert gradients_per_micro_batch(finding_pages.case("weight-gathered-again")) == []
    assert gradients_per_micro_batch(finding_pages.case("synchronous")) == []


def test_one_batch_is_advice():
    found = finding_pages.finding(PAGE, after=True)
    assert found.advice.startswith("run the micro-batches as one batch")


def test_a_layer_that_is_applied_several_times_is_one_micro_batch():
    assert num_micro_batches(finding_pages.case(PAGE), "weight") == 4
    again = finding_pages.case("weight-gathered-again")
    assert num_micro_batches(again, "weight") == 1


@pytest.mark.slow
def test_gradients_that_are_cast_before_they_are_added_up():
    case = micro_batched.layers(torch.bfloat16)
    (found,) = gradients_per_micro_batch(case)
    assert (
        "a cast to f32 stands between: the gradient is reduced in bf16" in found.why[2]
    )
    assert reductions(case.schedule, "0.weight") == [(1, ("fsdp",), "bf16")] * 4
    (fix,) = found.fixes
    assert len(fix.change.widened) == 8  # a cast of each weight's in each micro-batch
    after, schedule = proven(case)
    assert after.fix is not None and after.fix.proof is not None
    assert after.fix.proof.gone and set(after.fix.proof.gains) == {"bytes", "time"}
    assert "MixedPrecision()" in after.fix.code
    assert reductions(schedule, "0.weight") == [(1, ("fsdp",), "f32")]


@pytest.mark.slow
def test_copies_on_other_hosts_are_reduced_with_the_rest():
    case = micro_batched.layers(mesh=COPIES)
    after, schedule = proven(case)
    assert "where it is made: it stays as it was" in after.tried[0]
    assert after.fix is not None and after.fix.proof is not None
    assert after.fix.proof.gone
    assert 'grad=tuple(("fsdp", "replica") if e == "fsdp" else e' in after.fix.code
    assert reductions(schedule, "1.weight") == [(1, ("replica", "fsdp"), "f32")]
    pasted = micro_batched.layers(mesh=COPIES, grad=(("fsdp", "replica"), None))
    assert figures(pasted.schedule) == after.fix.proof.after


@pytest.mark.slow
def test_annotations_that_are_there_are_changed():
    """As FSDPv2 makes them: another one after them would come too late."""
    case = micro_batched.layers(mesh=COPIES, grad=SPLIT)
    (found,) = gradients_per_micro_batch(case)
    further = found.fixes[-1].change
    assert further.values == () and len(further.annotations) == 8
    after, schedule = proven(case)
    assert after.fix is not None and after.fix.change == further
    assert reductions(schedule, "1.weight") == [(1, ("replica", "fsdp"), "f32")]


@pytest.mark.slow
def test_an_embedding_and_a_norm():
    case = micro_batched.embedded()
    found = {f.where: f for f in gradients_per_micro_batch(case)}
    other = next(f for w, f in found.items() if "embed.weight" in w)
    assert "head.weight" not in other.tensors
    assert "of 4 micro-batches" in other.what
    assert other.fix is not None
    marked = {case.ops.ops[n].shape for n, _ in other.fix.change.values}
    assert (512, 256) in marked
    verified = profiling.verify(case.program, case.schedule, [other])
    (after,) = verified.findings
    assert after.fix is not None and after.fix.proof is not None
    assert after.fix.proof.gone and "bytes" in after.fix.proof.gains


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "start"),
    [(torch.float32, None), (torch.float32, SPLIT), (torch.bfloat16, SPLIT)],
    ids=["float32", "start-split", "bfloat16"],
)
def test_a_loop_that_adds_up_reduces_once_after_it(dtype, start):
    case = micro_batched.looped(dtype, start=start)
    (found,) = gradients_per_micro_batch(case)
    assert "reduced 4 times in a loop of 4 runs" in found.what
    assert found.why[0].startswith("a loop of 4 runs makes a gradient of weight")
    (before,) = reductions(case.schedule, "weight")
    assert before[0] == 4
    after, schedule = proven(case)
    assert after.fix is not None and after.fix.proof is not None
    assert after.fix.proof.gone
    assert reductions(schedule, "weight") == [(1, ("fsdp",), "f32")]


@pytest.mark.slow
def test_the_lines_for_a_loop_do_what_was_proven():
    after, _ = proven(micro_batched.looped())
    assert after.fix is not None and after.fix.proof is not None
    first, second = after.fix.code.splitlines()
    assert "mark_sharding(total, mesh, (None, None))" in first
    assert second == 'total = spmd.mark_sharding(total * 1, mesh, ("fsdp", None))'
    by_hand = figures(micro_batched.looped(by_hand=True).schedule)
    assert by_hand.wire_bytes == after.fix.proof.after.wire_bytes
    assert by_hand.step_s == pytest.approx(after.fix.proof.after.step_s, rel=0.02)


@pytest.mark.slow
def test_loops_over_layers_are_no_micro_batches():
    from tests.profiling import judged_steps

    assert gradients_per_micro_batch(judged_steps.looped()) == []


def test_the_cpu_compiler_reduces_each():
    case = finding_pages.case(PAGE)
    target = profiling.Target.parse("cpu:8")
    schedule = dataclasses.replace(case.schedule, target=target)
    (found,) = gradients_per_micro_batch(Case(case.program, schedule))
    assert found.severity == "note" and "never adds up" in found.why[-1]
    assert found.fixes == () and found.advice


def test_little_is_a_note():
    case = finding_pages.case(PAGE)
    many = tuple(
        dataclasses.replace(c, wire_bytes=c.wire_bytes * 10**4)
        if c.role != "gradient reduction"
        else dataclasses.replace(c, exposed_s=0.0)
        for c in case.schedule.collectives
    )
    schedule = dataclasses.replace(case.schedule, collectives=many)
    (found,) = gradients_per_micro_batch(Case(case.program, schedule))
    assert found.severity == "note"


def test_what_a_fix_leaves_behind_is_not_gone():
    """Its `where` is another one then, but its parameters are among those before."""
    case = finding_pages.case(PAGE)
    (found,) = gradients_per_micro_batch(case)
    (fix,) = found.fixes
    idle = Change(flags=(("xla_gpu_enable_analytical_latency_estimator", True),))
    before = dataclasses.replace(
        found.with_fix(dataclasses.replace(fix, change=idle)),
        where="other.weight and weight",
        tensors=("other.weight", "weight"),
    )
    verified = profiling.verify(case.program, case.schedule, [before])
    (after,) = verified.findings
    assert after.fix is None
    assert "it stays as it was" in after.tried[0]
