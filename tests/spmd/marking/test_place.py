"""A value and its gradient, each split in its own way."""

import re

import torch

from spmd import Mesh
from spmd._marking.place import placed
from tests.on_device import sync
from tests.spmd.same_as_torch import graph, random

MESH = Mesh({"fsdp": 2, "tensor": 4})
ROWS, COLUMNS = ("fsdp", None), (None, "tensor")


def value():
    """Computed, as values inside a step are."""
    return (random(4, 8).to("xla") * 2).requires_grad_()


def tiles(*tensors):
    """Tiles of what is marked on the way to tensors."""
    text = graph(*[t * 1 for t in tensors])
    return re.findall(r"custom-call.*sharding=\{devices=\[([\d,]*)\]", text)


def test_values_and_gradient_are_the_same():
    x = random(4, 8).to("xla").requires_grad_()
    (grad,) = torch.autograd.grad(placed(x, MESH, ROWS).square().sum(), x)
    sync()
    assert torch.allclose(grad.cpu(), 2 * x.detach().cpu())


def test_each_has_its_own_spec():
    x = value()
    out = placed(x, MESH, ROWS, grad=COLUMNS)
    assert tiles(out) == ["2,1,4"]
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    assert tiles(grad) == ["2,1,4", "1,4,2"]
    sync()


def test_one_spec_for_both():
    x = value()
    (grad,) = torch.autograd.grad(placed(x, MESH, ROWS).square().sum(), x)
    assert tiles(grad) == ["2,1,4", "2,1,4"]
    sync()


def test_the_tensor_itself_stays():
    x = value()
    placed(x, MESH, ROWS)
    assert tiles(x + 1) == []


def test_off_the_device():
    x = random(4, 8)
    assert placed(x, MESH, ROWS) is x
