"""Products with any number of batch, free and contracted dims."""

import pytest
import torch

from spmd._preserve.dot import Dims, dot
from tests.spmd.same_as_torch import check_same, random, shapes_of

CASES = {
    "linear": ("bse,oe->bso", (2, 3, 4), (5, 4), Dims((2,), (1,))),
    "matmul": (
        "bhsd,bhdt->bhst",
        (2, 3, 4, 5),
        (2, 3, 5, 6),
        Dims((3,), (2,), (0, 1), (0, 1)),
    ),
    "two contracted": ("bso,bse->oe", (2, 3, 4), (2, 3, 5), Dims((0, 1), (0, 1))),
    "contracted in another order": (
        "abc,bad->cd",
        (2, 3, 4),
        (3, 2, 5),
        Dims((0, 1), (1, 0)),
    ),
    "batch in another order": (
        "abc,cba->ab",
        (2, 3, 4),
        (4, 3, 2),
        Dims((2,), (0,), (0, 1), (2, 1)),
    ),
    "batch behind": (
        "sbe,tbe->bst",
        (4, 2, 3),
        (5, 2, 3),
        Dims((2,), (2,), (1,), (1,)),
    ),
    "all contracted": ("ab,ab->", (2, 3), (2, 3), Dims((0, 1), (0, 1))),
    "outer": ("a,b->ab", (2,), (3,), Dims((), ())),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    equation, a, b, dims = CASES[name]

    def product(a, b):
        if a.device.type == "xla":
            return dot(a, b, dims)
        return torch.einsum(equation, a, b)

    text = check_same(product, random(*a), random(*b, seed=1))
    assert text.count(" dot(") == 3
    assert " reshape(" not in text


def test_a_linear_layer_needs_no_transposition():
    dims = CASES["linear"][3]

    def product(a, b):
        return dot(a, b, dims) if a.device.type == "xla" else a @ b.mT

    text = check_same(product, random(2, 3, 4), random(5, 4))
    assert shapes_of(text, "dot") == [[2, 3, 5], [2, 3, 4], [5, 4]]
    assert " transpose(" not in text


def test_second_derivative():
    def gradient(a, b):
        found = a @ b.mT if a.device.type == "cpu" else dot(a, b, Dims((2,), (1,)))
        (first,) = torch.autograd.grad(found.tanh().sum(), a, create_graph=True)
        return first

    check_same(gradient, random(2, 3, 4), random(5, 4))


def test_only_the_gradients_that_are_wanted():
    a, b = random(2, 3, 4).to("xla"), random(5, 4).to("xla")
    found = dot(a.requires_grad_(), b, Dims((2,), (1,)))
    found.sum().backward()
    assert a.grad is not None and b.grad is None


def test_shapes_are_known_without_data():
    a, b = torch.empty(2, 3, 4, 5, device="meta"), torch.empty(2, 6, 5, device="meta")
    found = torch.ops.spmd.dot_general(a, b, [3], [2], [0], [0])
    assert found.shape == (2, 3, 4, 6) and found.device.type == "meta"


def test_free_dims():
    dims = Dims((3,), (2,), (0,), (0,))
    assert dims.free_a(4) == (1, 2)
    assert dims.free_b(3) == (1,)
