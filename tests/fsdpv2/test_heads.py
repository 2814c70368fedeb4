"""Gradients below a classifier's head: they stay split over rows."""

import copy

import pytest
import torch
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2
from fsdpv2._heads import rows_stay
from spmd import Mesh
from tests.fsdpv2.layers import check_close
from tests.on_device import constraints, on_device, sync

MESH = Mesh({"replica": 2, "fsdp": 4})
AXES = ("replica", "fsdp")
ROWS, SEQ, WIDTH = 16, 4, 64


class Classifier(nn.Module):
    """A layer over a sequence, and a head of the first token."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x))[:, 0])


def batch_of():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, SEQ, WIDTH, generator=generator)


@pytest.mark.parametrize("num", [1, 2])
def test_rows_are_not_gathered_below_a_head(num):
    """Its weight [8, 64] is larger than the gradient of the logits."""
    with spmd.meta_parameters():
        module = Classifier()
    model = FSDPv2(module, MESH, min_shard_elements=1)

    def step(x):
        for micro in model.microbatches(x, num):
            model(micro).square().sum().backward()
        return [p.grad for p in model.parameters()]

    program = spmd.trace(step, batch_of(), model=model, batch_spec=(AXES,))
    found = profiling.compile(program, "cpu:8").collectives
    moved = [c for c in found if c.role in ("activation", "reshard", "input")]
    assert not moved


def test_values_and_gradients_are_those_of_one_device():
    torch.manual_seed(0)
    plain = Classifier()
    model = FSDPv2(copy.deepcopy(plain), MESH, min_shard_elements=1)
    want = plain(batch_of())
    want.square().sum().backward()
    found = model(spmd.shard_batch(batch_of(), MESH))
    found.square().sum().backward()
    sync()
    grads = {n: p.grad.cpu() for n, p in model.named_parameters()}
    expected = {n: p.grad for n, p in plain.named_parameters()}
    check_close(
        {"out": found.detach().cpu(), **grads}, {"out": want.detach(), **expected}
    )


def gradient_of(*shape, rows=ROWS, split=True):
    """What the gradient of a layer's input is said to be split as."""
    layer = nn.Linear(shape[-1], 8).to("xla")
    if split:
        spmd.mark_sharding(layer.weight, MESH, (None, "fsdp"))
    x = on_device(*shape).requires_grad_()
    with rows_stay(MESH, AXES, rows=rows):
        out = layer(x * 2)
    out.sum().backward()
    return constraints(x.grad)


def test_columns_are_split_as_the_weights():
    mesh = Mesh({"fsdp": 4, "tensor": 2})
    layer = nn.Linear(WIDTH, 8).to("xla")
    spmd.mark_sharding(layer.weight, mesh, (None, ("fsdp", "tensor")))
    x = on_device(ROWS, WIDTH).requires_grad_()
    with rows_stay(mesh, ("fsdp",), rows=ROWS):
        out = layer(x * 2)
    out.sum().backward()
    (split,) = constraints(x.grad)
    assert split.tile_shape == (4, 2)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((ROWS, SEQ, WIDTH), {}),
        ((2 * ROWS, WIDTH), {}),
        ((ROWS, WIDTH), {"rows": None}),
        ((ROWS, WIDTH), {"split": False}),
        ((4, WIDTH), {"rows": 4}),
    ],
    ids=["sequence", "other rows", "unknown rows", "unsplit", "too few rows"],
)
def test_what_is_no_head_is_left_to_the_compiler(shape, options):
    (split,) = gradient_of(ROWS, WIDTH)
    assert split.tile_shape == (8, 1)
    assert not gradient_of(*shape, **options)
