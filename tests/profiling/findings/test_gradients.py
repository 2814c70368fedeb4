"""Gradients that are reduced whole or too often."""

import torch

import profiling
import spmd
from profiling._findings.case import Case
from profiling._findings.gradients import gradients_all_reduced, weight_gradients
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


def test_what_is_scattered_is_fine():
    case = finding_pages.case("gradient-per-micro-batch")
    assert "reduce-scatter" in {c.kind for c in case.schedule.collectives}
    assert gradients_all_reduced(case) == []


def test_uneven_gradients_are_a_matter_of_padding():
    assert gradients_all_reduced(finding_pages.case("padding-waste")) == []


def test_matmuls_that_make_a_gradient():
    case = finding_pages.case("gradient-per-micro-batch")
    found = weight_gradients(case, case.values["weight"])
    assert len(found) == 4
    assert {op.shape for op in found} == {(512, 512)}


def test_what_no_annotation_says_is_a_note():
    """However large a share of the step it is: there is no line that removes it."""
    case = Case(*finding_pages.compiled("gradient-all-reduced"))
    (found,) = gradients_all_reduced(case)
    assert found.is_problem
    case.annotations = ()
    (found,) = gradients_all_reduced(case)
    assert found.severity == "note" and found.fix is None
    assert "the compiler sums it so of itself" in found.why[1]


def test_an_annotation_that_leaves_out_one_axis_of_two():
    mesh = spmd.Mesh({"fsdp": 4, "tensor": 2})
    with spmd.meta_parameters():
        model = torch.nn.Linear(2048, 2048, bias=False)
    spec = ("tensor", "fsdp")
    spmd.mark_sharding(model.weight, mesh, spec, grad=("tensor", None))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> None:
        h = model(x)
        spmd.mark_sharding(h, mesh, ("fsdp", "tensor"))
        h.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    x = torch.empty(8192, 2048, device="meta")
    program = spmd.trace(
        step, x, model=model, optimizer=optimizer, mesh=mesh, batch_spec=("fsdp", None)
    )
    schedule = profiling.compile(program, need("h100:1x8"))
    (found,) = gradients_all_reduced(Case(program, schedule))
    assert found.is_problem and found.axes == ("fsdp",)
    (after,) = profiling.verify(program, schedule, [found]).findings
    assert after.fix is not None and after.fix.proof is not None
    assert after.fix.proof.gone and "bytes" in after.fix.proof.gains
