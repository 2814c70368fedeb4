"""Products that function modes see with the weights of experts."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from spmd._experts.product import plus, product, stacked
from spmd._preserve.dot import Dims

TOKENS, EXPERTS, IN, OUT = 3, 4, 5, 6


class Seen(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append((func, args, kwargs))
        return func(*args, **(kwargs or {}))


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_values(device):
    x = random(TOKENS, IN)
    gate, up = random(EXPERTS, OUT, IN, seed=1), random(EXPERTS, OUT, IN, seed=2)
    biases = [random(EXPERTS, OUT, seed=3), random(EXPERTS, OUT, seed=4)]
    gate_up = torch.einsum("ti,exoi->texo", x, torch.stack([gate, up], 1))
    weights = [w.to(device) for w in (gate, up)]
    found = product(x.to(device), weights, Dims((1,), (3,)))
    torch.testing.assert_close(found.cpu(), gate_up)
    added = plus(found, [b.to(device) for b in biases])
    torch.testing.assert_close(added.cpu(), gate_up + torch.stack(biases, 1))
    one = product(x.to(device), weights[:1], Dims((1,), (2,)))
    torch.testing.assert_close(one.cpu(), gate_up[:, :, 0])
    assert stacked(weights[:1]) is weights[0]


def test_the_wider_dtype():
    x, weight = random(TOKENS, IN), random(EXPERTS, OUT, IN).bfloat16()
    found = product(x, [weight], Dims((1,), (2,)))
    wanted = torch.einsum("ti,eoi->teo", x, weight.float())
    torch.testing.assert_close(found, wanted)


def test_a_mode_sees_the_weights_themselves():
    x, weights = random(TOKENS, IN), [random(EXPERTS, OUT, IN)] * 2
    biases, dims = [random(EXPERTS, OUT)] * 2, Dims((1,), (3,))
    wanted = plus(product(x, weights, dims), biases)
    with Seen() as seen:
        made = product(x, weights, dims, axes=("fsdp",))
        found = plus(made, biases, axes=("fsdp",))
    torch.testing.assert_close(found, wanted)
    (first, args, options), (second, others, _) = seen.calls
    assert first is product and second is plus
    assert args[0] is x and args[1] is weights and args[2] is dims
    assert options == {"axes": ("fsdp",)}
    assert others[0] is made and others[1] is biases
