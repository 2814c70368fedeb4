"""torch's topk, as maxima."""

import pytest
import torch

import spmd
from spmd import Mesh
from spmd._preserve.topk import topk
from tests.on_device import sync
from tests.spmd.same_as_torch import check_same, graph, random

CASES = {
    "last": lambda x: torch.topk(x, 2)[0],
    "keywords": lambda x: torch.topk(x, k=3, dim=1, largest=False).values,
    "method": lambda x: x.topk(1, dim=0)[0],
    "all": lambda x: torch.topk(x, 5, -1)[0],
    "normalised_in_place": lambda x: _normalised(x),
}


def _normalised(x):
    values, _ = x.exp().topk(2, -1)
    values /= values.sum(-1, keepdim=True)
    return values


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    # Where rows add up to one, gradients are small differences of numbers near one.
    scale = 16.0 if name == "normalised_in_place" else 1.0
    text = check_same(CASES[name], random(4, 3, 5), scale=scale)
    assert "sort" not in text and "scatter" not in text


def test_many_are_sorted():
    text = check_same(lambda x: x.topk(40)[0], random(3, 50))
    assert "sort" in text


def indices_of(x, *args):
    with spmd.sharding_preserving():
        found = torch.topk(x.to("xla"), *args)
        values, indices = found[0], found[1]
    sync()
    return values.cpu(), indices.cpu()


def test_indices():
    x = random(4, 6)
    values, indices = indices_of(x, 3)
    wanted = x.topk(3)
    assert torch.equal(indices, wanted.indices) and indices.dtype == torch.int64
    assert torch.equal(values, wanted.values)


def test_integers():
    x = torch.tensor([[3, 1, 2], [5, 9, 7]])
    values, indices = indices_of(x, 2)
    assert values.tolist() == [[3, 2], [9, 7]] and indices.tolist() == [[0, 2], [1, 2]]


def test_equal_values_and_infinities():
    """Experts that are ruled out are minus infinity, and still counted each once."""
    inf = torch.inf
    x = torch.tensor([[1.0, 1.0, 0.0], [-inf, 2.0, -inf], [-inf] * 3, [inf, 1.0, inf]])
    values, indices = indices_of(x, 3)
    assert indices.tolist() == [[0, 1, 2], [1, 0, 2], [0, 1, 2], [0, 2, 1]]
    assert torch.equal(values, x.topk(3).values)


def test_not_a_number_is_the_largest():
    values, indices = indices_of(torch.tensor([1.0, torch.nan, 3.0]), 2)
    assert indices.tolist() == [1, 2] and values[0].isnan() and values[1] == 3


@pytest.mark.parametrize("args", [(7,), (1, 3)], ids=["too_many", "no_such_dim"])
def test_torch_says_what_is_wrong(args):
    with pytest.raises((RuntimeError, IndexError)), spmd.sharding_preserving():
        torch.topk(random(2, 6).to("xla"), *args)


def test_under_a_transform():
    x = random(3, 6)
    with spmd.sharding_preserving():
        got = torch.func.grad(lambda t: t.topk(2)[0].square().sum())(x.to("xla"))
    wanted = torch.func.grad(lambda t: t.topk(2)[0].square().sum())(x)
    sync()
    assert torch.allclose(got.cpu(), wanted, atol=1e-6)


def test_a_second_derivative():
    def twice(x):
        (grad,) = torch.autograd.grad((topk(x, 2)[0] ** 3).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    x = random(3, 6)
    got = twice(x.to("xla").requires_grad_())
    wanted = twice(x.clone().requires_grad_())
    sync()
    assert torch.allclose(got.cpu(), wanted, rtol=1e-5)


def test_rows_that_are_split_stay():
    mesh = Mesh({"fsdp": 8})
    x = random(16, 8).to("xla")
    spmd.mark_sharding(x, mesh, ("fsdp", None))
    with spmd.sharding_preserving():
        values, _ = topk(x.requires_grad_(), 2)
        (grad,) = torch.autograd.grad(values.square().sum(), x)
    text = graph(grad)
    assert "sort" not in text and "scatter" not in text and "gather" not in text
