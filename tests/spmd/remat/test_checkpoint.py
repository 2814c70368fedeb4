"""Checkpoints that models make themselves, on XLA devices."""

import copy
import functools

import pytest
import torch
import torch_xla.utils.checkpoint as of_torch_xla
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from spmd._remat.checkpoint import _modules_seen
from tests.fsdpv2.layers import check_close
from tests.on_device import sync

MESH = Mesh({"fsdp": 8})
IMPORTED = of_torch_xla.checkpoint  # before any device is used
DIM = 16


class Block(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 32), nn.Linear(32, DIM)
        self.drop = nn.Dropout(0.0)

    def forward(self, x, scale=1.0):
        Block.calls += 1
        return x + self.down(self.drop(torch.tanh(self.up(x)))) * scale


class Stack(nn.Module):
    """Blocks, each called by a function that is given the block."""

    def __init__(self, call) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.call = call

    def forward(self, x):
        for block in self.blocks:
            x = self.call(block, x)
        return x


def batch():
    return torch.randn(8, 4, DIM, generator=torch.Generator().manual_seed(1))


def by_closure(block, x):
    def run(x):
        return block(x)

    return checkpoint(run, x, use_reentrant=True)


def by_policy(block, x):
    def keep(_context, operation, *args, **kwargs):
        if "tanh" in str(operation):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, keep)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


CALLS = {
    "module": lambda b, x: checkpoint(b, x, use_reentrant=False),
    "reentrant": lambda b, x: checkpoint(b, x, use_reentrant=True),
    "method": lambda b, x: checkpoint(b.forward, x, use_reentrant=False, scale=0.5),
    "partial": lambda b, x: checkpoint(
        functools.partial(Block.forward, b, scale=0.5), x, use_reentrant=False
    ),
    "closure": by_closure,
    "policy": by_policy,
    "options": lambda b, x: checkpoint(
        b,
        x,
        use_reentrant=False,
        preserve_rng_state=False,
        determinism_check="none",
        early_stop=False,
    ),
    "nested": lambda b, x: checkpoint(
        lambda x: checkpoint(b, x, use_reentrant=False), x, use_reentrant=False
    ),
    "sequential": lambda b, x: checkpoint_sequential(
        nn.Sequential(b, nn.Tanh()), 2, x, use_reentrant=False
    ),
    "torch_xla": lambda b, x: of_torch_xla.checkpoint(b, x),
    "torch_xla, imported": lambda b, x: IMPORTED(b, x, use_reentrant=True),
}


def gradients(model, x):
    x = x.requires_grad_()
    model(x).square().mean().backward()
    sync()
    found = {n: p.grad for n, p in model.named_parameters()}
    return {n: g.cpu() for n, g in {**found, "x": x.grad}.items()}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("wrap", [True, False])
def test_gradients_are_those_without(call, wrap):
    plain = Stack(call)
    model = copy.deepcopy(plain)
    model = FSDPv2(model, MESH, min_shard_elements=1) if wrap else spmd.to_device(model)
    found = gradients(model, spmd.shard_batch(batch(), MESH))
    if call in (CALLS["torch_xla"], CALLS["torch_xla, imported"]):
        plain.call = CALLS["module"]  # torch_xla's would start the devices
    check_close(found, gradients(plain, batch()))


@pytest.mark.parametrize("call", ["module", "closure", "torch_xla", "nested"])
def test_layers_are_computed_again(call):
    model = FSDPv2(Stack(CALLS[call]), MESH)
    x = spmd.shard_batch(batch(), MESH)
    Block.calls = 0
    model(x).sum().backward()
    sync()
    assert Block.calls == 4  # nested ones stop before the inner call


def test_what_is_computed_again_anyway_is_computed_again_once():
    model = FSDPv2(Stack(CALLS["module"]), MESH, remat="full")
    Block.calls = 0
    model(spmd.shard_batch(batch(), MESH)).sum().backward()
    sync()
    assert Block.calls == 4


def test_without_gradients_it_is_a_call():
    model = FSDPv2(Stack(CALLS["module"]), MESH)
    with torch.no_grad():
        out = model(spmd.shard_batch(batch(), MESH))
    torch.testing.assert_close(out.cpu(), Stack(CALLS["module"])(batch()))


def test_what_was_dropped_is_dropped_again():
    class Drop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return checkpoint(lambda x: self.drop(x).relu() ** 2, x)

    model = FSDPv2(Drop(), MESH)
    x = spmd.shard_batch(torch.rand(16, 32) + 1, MESH).requires_grad_()
    out = model(x)
    out.sum().backward()
    sync()
    torch.testing.assert_close(x.grad.cpu() > 0, out.detach().cpu() > 0)


def test_on_the_cpu_it_is_torchs():
    block = Block()
    x = batch().requires_grad_()
    checkpoint(block, x, use_reentrant=False, debug=True).sum().backward()
    with pytest.raises(ValueError, match="Unexpected keyword arguments: scale"):
        checkpoint(block, x, use_reentrant=True, scale=2.0)


def test_debug_is_refused():
    block = spmd.to_device(Block())
    x = spmd.shard_batch(batch(), MESH)
    with pytest.raises(ValueError, match="debug=True is not to be had on XLA devices"):
        checkpoint(block, x, use_reentrant=False, debug=True)


def test_an_error_inside_comes_out_and_leaves_nothing_behind():
    block = spmd.to_device(Block())
    x = spmd.shard_batch(batch(), MESH).requires_grad_()
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        checkpoint(block, x, use_reentrant=False, other=1)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    sync()


def test_modules_are_seen_through_functions():
    block, other = Block(), Block()

    def inner(x):
        return block(x)

    def outer(x):
        return inner(x) + functools.partial(other.forward, scale=2.0)(x)

    def early():
        return later

    assert _modules_seen(outer) == [block, other]
    assert _modules_seen(functools.partial(outer, 1)) == [block, other]
    assert _modules_seen(early) == _modules_seen(len) == []
    later = 1
