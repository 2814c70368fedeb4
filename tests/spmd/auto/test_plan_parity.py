"""`auto_plan` on eight devices: the loss and every gradient are the whole model's."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh
from spmd._auto.plan import auto_plan
from spmd._plans.module import take_apart
from spmd._stacked.layers import per_layer
from tests.on_device import sync
from tests.spmd.hf_models import CASES

MESH = Mesh({"fsdp": 2, "tensor": 4})
DEFAULT = ("llama", "gpt2", "bert")
LOSS_TOLERANCE, TOLERANCE = 1e-5, 2e-5
# A gradient whose largest entry is below this is rounding noise, as that of a key's
# bias is, which attention does not depend on.
NOISE = 1e-4


def marked(names):
    slow = pytest.mark.slow
    return [n if n in DEFAULT else pytest.param(n, marks=slow) for n in names]


@functools.cache
def whole(name: str) -> tuple[nn.Module, torch.Tensor, dict[str, torch.Tensor]]:
    """The model, its loss, and its gradients."""
    model = CASES[name].build()
    own = copy.deepcopy(model)
    loss = own(**CASES[name].batch()).loss
    loss.backward()
    return model, loss.detach(), {n: p.grad for n, p in own.named_parameters()}


def by_part(model: nn.Module, plan: spmd.Plan, gradients: dict[str, torch.Tensor]):
    """Gradients by the names that parameters have once weights are taken apart."""
    twin = copy.deepcopy(model)
    take_apart(twin, plan)
    twin.load_state_dict(gradients, strict=False)
    return dict(twin.named_parameters())


@pytest.mark.filterwarnings("ignore:.*does not divide over")
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize("name", marked(CASES))
def test_loss_and_gradients_are_the_whole_models(name, sequence):
    check(name, MESH, ("fsdp",), sequence_parallel=sequence)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_experts_on_an_axis_of_their_own(name, sequence):
    mesh = Mesh({"fsdp": 2, "expert": 2, "tensor": 2})
    check(name, mesh, (("fsdp", "expert"),), sequence_parallel=sequence)


def check(name: str, mesh: Mesh, batch_spec: tuple[object, ...], **options: bool):
    model = spmd.to_device(copy.deepcopy(whole(name)[0]))
    plan = auto_plan(model, mesh, min_shard_elements=1, **options)
    spmd.shard_module(model, mesh, plan)
    check_same(name, model, mesh, plan=plan, batch_spec=batch_spec)


def check_same(
    name: str,
    model: nn.Module,
    mesh: Mesh,
    *,
    plan: spmd.Plan,
    batch_spec: tuple[object, ...] = ("fsdp",),
):
    """The loss and each gradient of a model that was split are the whole model's."""
    own, wanted, gradients = whole(name)
    batch = spmd.shard_batch(CASES[name].batch(), mesh, spec=batch_spec)
    with spmd.sharding_preserving():
        loss = model(**batch).loss
        loss.backward()
    sync()
    assert abs(loss.cpu() - wanted) <= LOSS_TOLERANCE
    expected = by_part(own, plan, gradients)
    found = {n: p.grad.cpu() for n, p in model.named_parameters()}
    found = dict(per_layer(model, found.items()))
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        worst = (found[key] - gradient).abs().max()
        scale = gradient.abs().max()
        assert scale > 0, key
        assert worst <= TOLERANCE * min(1.0, max(scale, NOISE)), f"{key}: {worst}"
