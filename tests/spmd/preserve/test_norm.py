"""Layer norm with its dims kept, against torch."""

import pytest
import torch
import torch.nn.functional as F

import spmd
from tests.spmd.same_as_torch import check_same, graph, random

each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def norm(num=1, eps=1e-5):
    def function(x, *affine):
        return F.layer_norm(x, x.shape[-num:], *affine, eps=eps)

    return function


@each_dtype
@pytest.mark.parametrize("num", [1, 2])
@pytest.mark.parametrize("affine", [0, 1, 2])
def test_values_and_gradients(num, affine, dtype):
    x = random(4, 3, 2, 16) * 3 + 1
    given = [random(*x.shape[-num:], seed=i) for i in range(affine)]
    if dtype is torch.bfloat16:
        given = given[:1]  # XLA's CPU compiler rounds a bias's sum at every term
    text = check_same(norm(num), x, *given, dtype=dtype)
    assert "batch-norm" not in text


def test_eps():
    check_same(norm(eps=0.5), random(2, 3, 8))


def test_a_large_mean():
    """Centred first: E[x^2] - E[x]^2 would leave nothing."""
    check_same(norm(), random(2, 3, 64) + 100.0, scale=100.0)


def test_second_derivative():
    def gradient(x, weight):
        found = F.layer_norm(x, (8,), weight).tanh().sum()
        return torch.autograd.grad(found, x, create_graph=True)[0]

    check_same(gradient, random(2, 3, 8), random(8), scale=4.0)


def test_weights_of_another_dtype():
    x = random(2, 3, 8).bfloat16()
    with spmd.sharding_preserving():
        found = F.layer_norm(x.to("xla"), (8,), random(8).to("xla"))
    assert found.dtype == torch.bfloat16
    wanted = F.layer_norm(x, (8,), random(8).bfloat16())
    torch.testing.assert_close(found.cpu(), wanted, rtol=0.02, atol=0.02)


def test_one_leading_dim():
    text = check_same(norm(), random(6, 16), random(16), random(16, seed=1))
    assert "batch-norm" not in text


def test_no_leading_dim_is_torchs():
    with spmd.sharding_preserving():
        text = graph(F.layer_norm(random(8).to("xla"), (8,)))
    assert "batch-norm" in text


def test_torch_refuses_what_it_refuses_without():
    with spmd.sharding_preserving(), pytest.raises(RuntimeError, match="Given normal"):
        F.layer_norm(random(2, 3, 8).to("xla"), (4,))
