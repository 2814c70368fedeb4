"""Rows that leave the batch's axes, from the case of the field on."""

import math

import torch

import profiling
import spmd
from profiling import explain, verify
from profiling._findings.activations import activations_gathered, roots
from profiling._findings.case import Case
from tests.profiling import field_case, finding_pages, judged_steps
from tests.profiling.compilers import need


def test_the_field_case_is_found_with_its_cause_and_its_line():
    found = field_case.gathered(explain(*field_case.compiled()))
    assert (found.kind, found.severity) == ("activation-gathered", "problem")
    assert found.where == "up" and not found.wanted
    assert set(found.axes) == {"replica", "fsdp"} and found.link == "ib"
    assert found.modules == ("up", "down")
    assert set(found.phases) == {"forward", "backward"}
    assert "up.weight [9600, 12800] is split on dim 0 over fsdp" in found.why[1]
    assert "[1600, 9600]" in found.why[2] and "[1600, 1200]" in found.why[2]
    assert found.why[3].startswith("down computes [100, 1280]")
    assert found.fix is not None
    assert found.fix.code == (
        'spmd.mark_sharding(h, mesh, (("fsdp", "replica"), None))'
    )
    assert found.fix.place.endswith("h = self.up(x)")


def test_its_bytes_are_those_of_all_that_moves_rows():
    program, schedule = field_case.compiled()
    found = field_case.gathered(explain(program, schedule))
    # Independent: x whole on 16 devices, and the output of `up` on 8 for the gradient.
    x, h, d = 1600 * 12800 * 2, 1600 * 9600 * 2, 1600 * 1280 * 2
    gathers = x * 15 // 16 + h * 7 // 8 + d * 15 // 16
    to_rows = h // 8 * 7 // 16 + h // 16  # all-to-all of half, permute of a piece
    assert found.wire_bytes == gathers + to_rows
    moving = [c for c in schedule.collectives if c.role in _MOVING]
    assert found.wire_bytes == sum(c.step_wire_bytes for c in moving)


_MOVING = ("activation", "reshard", "input")


def test_matmuls_are_judged_by_their_pieces():
    case = finding_pages.case("activation-gathered")
    first, second = roots(case)
    assert first is not None and second is None
    assert first.op.shape == (1600, 2400) and first.split.piece == (1600, 600)
    assert math.prod(first.split.ways) == 4


def test_nothing_where_weights_are_gathered():
    assert activations_gathered(finding_pages.case("synchronous")) == []
    assert activations_gathered(finding_pages.case("tensor-across-hosts")) == []


def test_matmuls_in_a_loop_are_judged():
    assert activations_gathered(judged_steps.looped()) == []
    case = judged_steps.looped((None, "fsdp"))  # features, where rows were wanted
    up, down = roots(case)
    assert up is not None and up.op.in_loop and up.split.ways == (1, 4)
    assert up.weight == "up" and down is None
    (found,) = activations_gathered(case)
    runs = {c.num_runs for c in case.moving if c.name in found.collectives}
    assert 3 in runs  # once a layer


def test_convolutions_are_judged_and_their_fix_is_proven():
    case = judged_steps.convolved(4, 256)
    (found,) = activations_gathered(case)
    assert found.where == "one and two" and found.is_problem
    assert "one.weight [1024, 256, 3, 3] is split on dim 0 over fsdp" in found.why[1]
    rows = (("fsdp", "replica"), None, None, None)
    assert found.fix is not None
    assert found.fix.outputs == {"one": rows, "two": rows}
    (after,) = verify(case.program, case.schedule, [found]).findings
    assert after.fix is not None and after.fix.proof is not None
    assert after.fix.proof.gone and after.fix.proof.after.activation_bytes == 0


def test_convolutions_whose_weights_are_gathered():
    case = judged_steps.convolved(16, 64)
    assert roots(case) == [None, None]
    assert activations_gathered(case) == []


def test_a_model_that_is_one_layer():
    mesh = spmd.Mesh({"data": 2, "tensor": 4})
    with spmd.meta_parameters():
        model = torch.nn.Linear(512, 2048, bias=False)
    spmd.shard_module(model, mesh, spmd.Plan({"weight": ("tensor", None)}))

    def step(x: torch.Tensor) -> torch.Tensor:
        h = model(x)
        spmd.mark_sharding(h, mesh, ("data", "tensor"))
        return h

    x, rows = torch.empty(4096, 512, device="meta"), (("data", "tensor"), None)
    program = spmd.trace(step, x, model=model, mesh=mesh, batch_spec=rows)
    schedule = profiling.compile(program, need("h100:1x8"))
    (found,) = activations_gathered(Case(program, schedule))
    assert found.where == "the model"
