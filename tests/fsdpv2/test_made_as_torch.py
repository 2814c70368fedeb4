"""What a model may do with weights in microbatches as it may in torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import spmd
from fsdpv2 import FSDPv2
from tests.fsdpv2.layers import check_close, gradients
from tests.fsdpv2.test_made import COPIES, accumulated_of

SEQ, WIDTH = 8, 16


def rows():
    return torch.randn(16, SEQ, WIDTH, generator=torch.Generator().manual_seed(1))


def square(model, batch):
    return model(batch).float().square().mean()


class Uses(nn.Module):
    def __init__(self, call, **weights):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in weights.items():
            value = torch.randn(shape, generator=generator)
            setattr(self, name, nn.Parameter(value / (*shape, 1)[-1] ** 0.5))
        self.call = call

    def forward(self, x):
        return self.call(self, x)


def check(make, loss_of=square, batch=None):
    batch = rows() if batch is None else batch
    want = gradients(make(), batch, loss_of)
    model = FSDPv2(make(), COPIES, min_shard_elements=1)
    check_close(accumulated_of(model, batch, loss_of), want)


def without_gradient(m, x):
    with torch.no_grad():
        scale = m.a * 2
    return F.linear(x, m.w) * scale + m.a


def list_that_changes(m, x):
    both = [m.w, m.v]
    weight = torch.cat(both)
    both.append(m.v)
    return F.linear(x, weight)


def number_of_another_dtype(m, x):
    y = F.linear(x, m.w).to(torch.bfloat16) * m.n
    return y * (1 if y.dtype == torch.bfloat16 else 3)


def hook_on_what_is_made(m, x):
    scale = m.a * 2
    scale.register_hook(lambda g: 3 * g)
    return x * scale


def again(m, x):
    def call():
        return torch.tanh(F.linear(x * (1 + m.a), m.w, m.a))

    y = checkpoint(call, use_reentrant=False, preserve_rng_state=False)
    return F.linear(y, m.w)


def of_func(m, x):
    return torch.func.grad(lambda y: torch.tanh(F.linear(y, m.w) * m.a).sum())(x)


MATRIX = {"w": (WIDTH, WIDTH), "a": (WIDTH,)}
CALLS = {
    "no_grad": (without_gradient, MATRIX),
    "list": (list_that_changes, {"w": (4, WIDTH), "v": (3, WIDTH)}),
    "type": (lambda m, x: x @ m.w if m.w.type() else x, {"w": (WIDTH, 4)}),
    "number": (number_of_another_dtype, {"w": (WIDTH, WIDTH), "n": ()}),
    "rows_of_its_own": (
        lambda m, x: x + m.w.expand(8, 3, WIDTH).mean((0, 1)),
        {"w": (8, 1, 16)},
    ),
    "vector": (lambda m, x: F.linear(x, m.a), MATRIX | {"w": (1,)}),
    "ids": (lambda m, x: x + m.w[torch.arange(SEQ)], {"w": (SEQ + 1, WIDTH)}),
    "hook": (hook_on_what_is_made, {"a": (WIDTH,)}),
    "checkpoint": (again, MATRIX),
    "func": (of_func, MATRIX),
    "vmap": (lambda m, x: torch.func.vmap(lambda y: y @ m.w * (1 + m.a))(x), MATRIX),
    "dilated": (lambda m, x: F.conv1d(x, m.w, dilation=8), {"w": (4, SEQ, 2)}),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_torchs(name):
    call, weights = CALLS[name]
    weights = {n: s for n, s in weights.items() if name != "vector" or n == "a"}
    near = {"number": 0.03}.get(name)

    def make():
        return Uses(call, **weights)

    if near is None:
        check(make)
        return
    want = gradients(make(), rows(), square)
    model = FSDPv2(make(), COPIES, min_shard_elements=1)
    check_close(accumulated_of(model, rows(), square), want, rtol=near)


def test_windows_with_something_around_them():
    def make():
        return Uses(lambda m, x: F.conv1d(x, m.w, stride=4, padding=1), w=(4, SEQ, 3))

    check(make, batch=rows()[..., :6])


def test_a_convolution_after_a_norm_is_added_up_once():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.LayerNorm(WIDTH), nn.Conv1d(SEQ, 4, 3))

    check(make)


def penalty(model, batch):
    batch = batch.detach().requires_grad_()
    out = model(batch)
    (grad,) = torch.autograd.grad(out.sum(), batch, create_graph=True)
    return out.square().mean() + (grad.square().sum(-1) - 1).square().mean()


TWICE = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.LayerNorm(WIDTH),
    "conv": lambda: nn.Conv1d(SEQ, 4, 3),
    "product": lambda: Uses(lambda m, x: x * (1 + m.a) + m.a, a=(WIDTH,)),
    "copies": lambda: Uses(lambda m, x: x / (2 + m.a**2), a=(WIDTH,)),
}


@pytest.mark.parametrize("kind", TWICE)
def test_a_penalty_on_gradients(kind):
    def make():
        torch.manual_seed(0)
        first = nn.Linear(WIDTH, WIDTH)
        layers = nn.Sequential(first, nn.Tanh(), TWICE[kind](), nn.Tanh(), first)
        return layers[:4] if kind == "conv" else layers

    check(make, penalty)


WRONG = {
    "group_norm": (lambda m, x: F.group_norm(x, 2, m.a), (1,), "equal to the number"),
    "prelu": (lambda m, x: F.prelu(x[:, :1], m.a), (WIDTH,), "Mismatch of parameter"),
    "conv": (lambda m, x: F.conv1d(x, m.a, m.a[:1, 0, 0]), (4, 8, 1), "expected bias"),
    "matmul": (lambda m, x: m.a @ x, (4, 1), "multiply"),
    "linear": (lambda m, x: F.linear(x, m.a), (4, 3), "multiply"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_by_torch(name):
    call, shape, match = WRONG[name]
    model = FSDPv2(Uses(call, a=shape), COPIES, min_shard_elements=1)
    batch = spmd.shard_batch(rows(), COPIES)
    first, _ = model.microbatches(batch, 2)
    with pytest.raises(RuntimeError, match=match):
        model(first)


def test_complex_weights_are_left_to_torch():
    def make():
        model = Uses(lambda m, x: torch.complex(x, 2 * x) * m.c)
        value = torch.randn(WIDTH, 2, generator=torch.Generator().manual_seed(0))
        model.c = nn.Parameter(torch.view_as_complex(value))
        return model

    check(make, lambda m, x: torch.view_as_real(m(x)).square().mean())
