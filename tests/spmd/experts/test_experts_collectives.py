"""A mixture of experts over an `expert` axis: parity, and what moves."""

from collections import Counter

import pytest
import torch
import transformers
from torch import nn
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

import profiling
import spmd
from spmd import Mesh, Plan
from spmd._experts.experts import rows_of, split_experts
from tests.on_device import sync
from tests.spmd.fused_block import (
    DIM,
    check_same,
    moved,
    on_meta,
    tokens,
    traced,
    with_gradients,
)

ROWS, SEQ, INSIDE = 8, 16, 16
X = (ROWS, SEQ, DIM)
MESHES = {
    "expert": Mesh({"fsdp": 2, "expert": 4}),
    "expert_and_tensor": Mesh({"fsdp": 2, "expert": 2, "tensor": 2}),
    "tensor": Mesh({"fsdp": 2, "tensor": 4}),
}
TARGETS = ["cpu:8", "h100:1x8"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        config = transformers.MixtralConfig(
            hidden_size=DIM,
            intermediate_size=INSIDE,
            num_local_experts=4,
            num_experts_per_tok=2,
        )
        self.norm = nn.LayerNorm(DIM)
        self.moe = MixtralSparseMoeBlock(config)
        for parameter in self.moe.parameters():
            nn.init.normal_(parameter, std=0.2)

    def forward(self, x):
        return x + self.moe(self.norm(x))


def axes(mesh):
    return ("fsdp", "expert") if "expert" in mesh.axis_names else "fsdp"


@pytest.fixture(scope="module", params=MESHES)
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
    whole = (axes(mesh), None, None)
    spmd.shard_module(
        model, mesh, Plan(patterns, outputs={"norm": whole, "moe": whole})
    )
    with_gradients(model)
    return traced(model, tokens(*X), axes=axes(mesh))


def test_loss_and_gradients(program):
    torch.manual_seed(0)
    model = Model()
    split_experts(model, ["moe.experts"])
    check_same(program, model, tokens(*X))


def test_no_read_on_the_host(program):
    """transformers' default would stop the trace at `histc`."""
    assert {v.name for v in program.inputs if v.role == "input"} == {"x"}


@pytest.mark.parametrize("target", TARGETS)
def test_tokens_meet_at_the_experts_and_part(mesh, program, target):
    schedule = profiling.compile(program, target)
    found = Counter(m.removeprefix("forward ") for m in moved(schedule))
    inside = "moe.experts"
    forward, backward = Counter(), Counter()
    if "expert" in mesh.axis_names:
        # Tokens to where the experts are; their shares; the sum over experts back.
        forward[f"{inside} all-gather expert"] = 1
        forward[f"{inside} all-to-all expert"] = 1
        forward[f"{inside} reduce-scatter expert"] = 1
        backward = Counter({f"backward {k}": n for k, n in forward.items()})
    if "tensor" in mesh.axis_names:
        forward[f"{inside} all-reduce tensor"] = 1
        backward[f"backward {inside} all-reduce tensor"] = 2  # tokens, and shares
    assert found == forward + backward


@pytest.mark.parametrize("target", TARGETS)
def test_weights_are_gathered_over_fsdp_only(program, target):
    schedule = profiling.compile(program, target)
    gathers = {
        (c.kind, c.axes)
        for c in schedule.collectives
        for m in c.moved
        if m.role == "weight gather"
    }
    assert gathers == {("all-gather", ("fsdp",))}
