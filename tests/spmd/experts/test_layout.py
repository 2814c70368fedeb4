"""Tokens of a mixture of experts whose sequence is split around the experts."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import profiling
import spmd
from spmd import Mesh, Plan
from spmd._experts.experts import rows_of, split_experts
from spmd._experts.layout import TokenLayout, _flattened
from tests.on_device import sync
from tests.spmd.experts.test_experts_collectives import MESHES, Model, X, axes
from tests.spmd.fused_block import check_same, on_meta, tokens, traced
from tests.spmd.fused_block import with_gradients as gradients_of

INSIDE = "moe.experts"


@pytest.mark.parametrize(
    ("view", "is_found"),
    [
        (lambda x: x.view(-1, 4), True),
        (lambda x: x.reshape(-1, 4), True),
        (lambda x: x.flatten(0, 1), True),
        (lambda x: x.transpose(0, 1).reshape(-1, 4), False),
        (lambda x: x.view(-1, 2), False),
        (lambda x: x.view(-1, 4) * 1.0, False),
        (lambda x: x.detach().view(-1, 4), False),
    ],
    ids=["view", "reshape", "flatten", "transposed", "other", "computed", "detached"],
)
@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_what_tokens_are_a_view_of(device, view, is_found):
    leaf = torch.zeros(2, 3, 4, device=device, requires_grad=True)
    source = leaf * 1.0
    found = _flattened(view(source))
    assert (found is source) if is_found else found is None


@pytest.mark.parametrize(
    ("spec", "sequence"),
    [
        (("fsdp", "tensor", None), "tensor"),
        (("fsdp", None, None), None),
        ((None, "fsdp", None), None),
    ],
    ids=["split", "whole", "over the axis of rows"],
)
def test_by_the_annotation_of_the_source(spec, sequence):
    mesh = Mesh({"fsdp": 2, "tensor": 4})
    down = torch.zeros(4, 16, 16, device="xla")
    spmd.mark_sharding(down, mesh, (None, "fsdp", "tensor"))
    leaf = torch.zeros(4, 8, 16, device="xla", requires_grad=True)
    source = spmd.mark_sharding(leaf * 1.0, mesh, spec)
    layout = TokenLayout.of(down, source.view(-1, 16), features=2)
    assert layout.sequence == sequence
    assert layout.source is (source if sequence else None)


@pytest.mark.parametrize("own", ["tensor", "expert_and_tensor"])
def test_sums_are_scattered_by_the_sequence_whatever_is_said_of_the_output(own):
    mesh = MESHES[own]
    expert = "expert" if "expert" in mesh.axis_names else None
    down = torch.zeros(4, 16, 16, device="xla")
    spmd.mark_sharding(down, mesh, (expert, "fsdp", "tensor"))
    leaf = torch.zeros(4, 8, 16, device="xla", requires_grad=True)
    around = (("fsdp", expert) if expert else "fsdp", "tensor", None)
    source = spmd.mark_sharding(leaf * 1.0, mesh, around)
    layout = TokenLayout.of(down, source.view(-1, 16), features=2)
    made = layout.part(torch.zeros(2, 2, 8, 16, device="xla"))
    found = spmd.get_sharding(made, mesh)
    assert found is not None and found.spec == ("fsdp", expert, "tensor", None)


@pytest.fixture(scope="module", params=["tensor", "expert_and_tensor"])
def mesh(request):
    return MESHES[request.param]


@pytest.fixture(scope="module")
def program(mesh):
    sync()
    model = on_meta(Model)
    rows = rows_of(model.moe.experts, mesh)
    split_experts(model, ["moe.experts"])
    patterns = {f"moe.experts.{k}": spec for k, spec in rows.parameters.items()}
    patterns |= {"moe.gate.weight": (None, None), "norm.*": (None,)}
    split = (axes(mesh), "tensor", None)
    plan = Plan(
        patterns,
        outputs={"norm": split, "moe": split, "": split},
        inputs={"": split, "moe": split},
    )
    spmd.shard_module(model, mesh, plan)
    gradients_of(model)
    return traced(model, tokens(*X), axes=axes(mesh))


def test_loss_and_gradients(program):
    torch.manual_seed(0)
    model = Model()
    split_experts(model, ["moe.experts"])
    check_same(program, model, tokens(*X))


@pytest.mark.slow
def test_tokens_are_scattered_over_one_axis_after_the_other(mesh, program):
    """A CPU reduces whole and slices; GPUs scatter where pieces are of one dim."""
    found = profiling.compile(program, "h100:1x8").collectives
    over = Counter(
        (c.phase, c.kind, *c.axes)
        for c in found
        for m in c.moved
        if m.module.startswith("moe") and m.role == "activation"
    )
    scattered = [a for a in ("expert", "tensor") if a in mesh.axis_names]
    wanted = {("forward", "reduce-scatter", axis): 1 for axis in scattered}
    for axis in scattered:
        wanted["backward", "reduce-scatter", axis] = 1
        wanted["backward", "all-gather", axis] = 1
    wanted["backward", "all-reduce", "tensor"] = 1  # shares
    assert over == wanted
    assert {c.form for c in found} == {"plain"}
