"""Gradients that are reduced whole or too often."""

import dataclasses

import torch

import profiling
import spmd
from profiling._findings.case import Case
from profiling._findings.gradients import (
    gradients_all_reduced,
    gradients_per_micro_batch,
    weight_gradients,
)
from tests.profiling import finding_pages
from tests.profiling.compilers import need


def test_the_annotation_that_makes_a_gradient_whole():
    found = finding_pages.finding("gradient-all-reduced")
    assert found.where == "weight"
    # An all-reduce over 8 sends 2 x 7/8 of the gradient.
    assert found.wire_bytes == 2 * 512 * 512 * 4 * 7 // 8
    assert "an annotation of its gradient" in found.why[1]
    assert found.fix is not None
    ((number, spec),) = found.fix.change.annotations
    op = finding_pages.case("gradient-all-reduced").ops.ops[number]
    assert spec == ("fsdp", None) and op.sharding == "{replicated}"


def test_uneven_gradients_are_a_matter_of_padding():
    assert gradients_all_reduced(finding_pages.case("padding-waste")) == []


def test_micro_batches_are_uses_that_do_not_read_each_other():
    found = finding_pages.finding("gradient-per-micro-batch")
    assert "3 times in a step of 4 micro-batches" in found.what
    first, second = found.fixes
    case = finding_pages.case("gradient-per-micro-batch")
    marked = [(case.ops.ops[n], spec) for n, spec in first.change.values]
    assert len(marked) == 4 and {spec for _, spec in marked} == {("fsdp", None)}
    assert {op.shape for op, _ in marked} == {(512, 512)}
    assert first.code == (
        'spmd.mark_sharding(model.weight, mesh, ("fsdp", None), grad=("fsdp", None))'
    )
    assert not second.change  # one batch is another trace
    assert gradients_per_micro_batch(finding_pages.case("weight-gathered-again")) == []
    assert gradients_per_micro_batch(finding_pages.case("synchronous")) == []


def test_gradients_that_are_cast_before_they_are_added_up():
    case = micro_batches(torch.bfloat16)
    (found,) = gradients_per_micro_batch(case)
    assert (
        "a cast to f32 stands between: the gradient is reduced in bf16" in found.why[2]
    )
    verified = profiling.verify(case.program, case.schedule, [found], most=1)
    (left,) = verified.findings
    assert "it stays as it was" in left.tried[0]  # it can be tried, and is of no use
    assert left.fix is not None and not left.fix.change and left.fix.proof is None


def test_the_cpu_compiler_reduces_each():
    case = finding_pages.case("gradient-per-micro-batch")
    target = profiling.Target.parse("cpu:8")
    schedule = dataclasses.replace(case.schedule, target=target)
    (found,) = gradients_per_micro_batch(Case(case.program, schedule))
    assert found.severity == "note" and "never adds up" in found.why[-1]
    assert [bool(fix.change) for fix in found.fixes] == [False]


def micro_batches(dtype: torch.dtype) -> Case:
    """Two layers, two micro-batches, and a gradient that is kept in float32."""
    mesh = spmd.Mesh({"fsdp": 8})
    with spmd.meta_parameters():
        model = torch.nn.Sequential(
            *(torch.nn.Linear(256, 256, bias=False) for _ in range(2))
        )
    spmd.shard_module(model, mesh, spmd.Plan({"*.weight": ("fsdp", None)}))
    optimizer = torch.optim.SGD(model.parameters())

    def step(batches: list[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(())
        for x in batches:
            h = x
            for weight in model.parameters():
                h = torch.nn.functional.linear(h, weight.to(dtype))
                spmd.mark_sharding(h, mesh, ("fsdp", None))
            loss = h.float().square().mean()
            loss.backward()
            total = loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    batches = [torch.empty(2048, 256, dtype=dtype, device="meta") for _ in range(2)]
    program = spmd.trace(
        step,
        batches,
        model=model,
        optimizer=optimizer,
        mesh=mesh,
        batch_spec=("fsdp", None),
    )
    return Case(program, profiling.compile(program, need("h100:1x8")))


def test_matmuls_that_make_a_gradient():
    case = finding_pages.case("gradient-per-micro-batch")
    found = weight_gradients(case, case.values["weight"])
    assert len(found) == 4
    assert {op.shape for op in found} == {(512, 512)}
