"""Weights that models use through others, or as a convolution does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from fsdpv2._made import Makings
from fsdpv2._unreduced import Unreduced
from spmd import Mesh
from spmd._stacked.layers import per_layer
from tests.fsdpv2.layers import FLAT, check_close, gradients
from tests.on_device import sync

COPIES = Mesh({"replica": 2, "fsdp": 4})
ROWS, SIZE, WIDTH = 16, 8, 32


class Made(nn.Module):
    """Each weight goes to rows in a way of its own."""

    def __init__(self):
        super().__init__()

        def weight(*shape):
            return nn.Parameter(torch.randn(shape) / shape[-1] ** 0.5)

        self.patches = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.around = nn.Conv2d(3, WIDTH, 3, padding="same", groups=1, bias=False)
        self.grouped = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=4)
        self.token = weight(1, 1, WIDTH)
        self.positions = nn.Embedding(17, WIDTH, padding_idx=2)
        self.types = weight(1, 17, WIDTH)
        self.plus_one = weight(WIDTH)
        self.transposed = weight(WIDTH, WIDTH)
        self.halves = nn.ParameterList([weight(WIDTH // 2, WIDTH) for _ in "ab"])
        self.squared = weight(WIDTH)
        self.groups = nn.GroupNorm(4, WIDTH)
        self.slope = nn.PReLU(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.across = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.heads = weight(WIDTH, 4, WIDTH // 4)
        self.before = weight(WIDTH, WIDTH)
        self.minus, self.above = weight(17, WIDTH), weight(WIDTH)
        self.table, self.bias = weight(17, WIDTH), weight(1, 4, 1, 24)

    def mixed(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.across(x, x.roll(1, 1), x.roll(1, 1), need_weights=False)[0]
        heads = torch.einsum("bsw,whd->bhsd", x, self.heads)
        heads = F.scaled_dot_product_attention(
            heads, heads, heads, self.bias[..., :17].expand(-1, -1, 17, -1)
        )
        x = x + heads.transpose(1, 2).flatten(2)
        x = x + torch.matmul(self.before, x.transpose(1, 2)).transpose(1, 2)
        x = torch.maximum(x - self.minus, self.above)
        x += self.table[torch.arange(17, device=x.device).unsqueeze(0)]
        return x

    def forward(self, x):
        x = self.patches(x) + F.avg_pool2d(self.around(x), 2)
        x = self.slope(self.groups(x))
        x = x.flatten(2)
        x = (x + self.grouped(x)).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        seq = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        x = x + self.positions(seq).to(x.dtype)
        x = x + self.types[:, : x.shape[1]]
        x = self.mixed(x)
        x = x * (1.0 + self.plus_one.float()).to(x.dtype)
        x = F.gelu(x @ self.transposed.T)
        x = F.linear(x, torch.cat(list(self.halves)))
        return x * (self.squared * self.squared) + (0.5 * self.plus_one).view(1, 1, -1)


def made():
    torch.manual_seed(0)
    return Made()


def images():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 3, SIZE, SIZE, generator=generator)


def loss_of(model, batch):
    return model(batch).float().square().mean()


def wrapped(mesh=COPIES, **options):
    return FSDPv2(made(), mesh, min_shard_elements=1, **options)


def accumulated(model, num=2):
    return accumulated_of(model, images(), loss_of, num=num)


def accumulated_of(model, batch, loss_of, num=2):
    batch = spmd.shard_batch(batch, model.mesh)
    losses = []
    for micro in model.microbatches(batch, num):
        loss = loss_of(model, micro) / num
        loss.backward()
        losses.append(loss.detach())
    sync()
    found = {n: p.grad.cpu() for n, p in model.named_parameters()}
    return {"loss": sum(losses).cpu(), **found}


@pytest.fixture
def kept(monkeypatch):
    seen = set()
    add = Unreduced.add

    def spy(self, weight, parts, **options):
        seen.add(id(weight))
        add(self, weight, parts, **options)

    monkeypatch.setattr(Unreduced, "add", spy)
    return lambda model: {n for n, p in model.named_parameters() if id(p) in seen}


@pytest.mark.parametrize("preserving", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"mixed_precision": MixedPrecision(torch.float32)}, {"remat": "full"}],
    ids=["plain", "precision", "remat"],
)
@pytest.mark.parametrize("mesh", [FLAT, COPIES], ids=["fsdp", "copies"])
def test_they_are_the_big_batchs(mesh, options, preserving, kept):
    want = gradients(made(), images(), loss_of)
    model = wrapped(mesh, **options)
    with spmd.sharding_preserving(preserving):
        check_close(accumulated(model), want)
    assert kept(model) == {n for n, _ in model.named_parameters()}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x):
        return x + torch.tanh((x * (1 + self.scale)) @ self.weight.T)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("remat", ["none", "full"])
def test_in_a_loop(remat, kept):
    def layers():
        torch.manual_seed(0)
        return Layers()

    plain = layers()
    want = gradients(plain, images(), loss_of)
    options = {"scan_layers": True, "remat": remat, "min_shard_elements": 1}
    model = FSDPv2(layers(), COPIES, **options)
    found = accumulated(model)
    found = dict(per_layer(model, found.items()))
    check_close(found, want)
    assert kept(model) == {n for n, _ in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_batch_norms_are_of_each_microbatch(dtype, kept):
    def normed():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, WIDTH, 2), nn.BatchNorm2d(WIDTH))
        nn.init.uniform_(model[1].weight)
        return model.to(dtype)

    plain, model = normed(), FSDPv2(normed(), COPIES, min_shard_elements=1)
    rows = images().to(dtype).reshape(8, 2, 1, 3, SIZE, SIZE)  # as devices split them
    for i in range(2):
        (loss_of(plain, rows[:, i].flatten(0, 1)) / 2).backward()
    for micro in model.microbatches(spmd.shard_batch(images().to(dtype), COPIES), 2):
        (loss_of(model, micro) / 2).backward()
    sync()
    assert kept(model) == {n for n, _ in model.named_parameters()}
    near = {"rtol": 0.05, "atol": 0.02} if dtype == torch.bfloat16 else {}
    want = {n: p.grad for n, p in plain.named_parameters()} | dict(
        plain.named_buffers()
    )
    got = {n: p.grad for n, p in model.named_parameters()} | dict(model.named_buffers())
    for name in ("1.weight", "1.bias", "1.running_mean"):
        torch.testing.assert_close(got[name].cpu(), want[name], **near)


def test_what_is_frozen_has_no_gradient():
    plain, model = made(), wrapped()
    for one in (plain, model):
        for name, parameter in one.named_parameters():
            parameter.requires_grad_(name not in ("plus_one", "halves.0", "token"))
    loss_of(plain, images()).backward()
    batch = spmd.shard_batch(images(), COPIES)
    for micro in model.microbatches(batch, 2):
        (loss_of(model, micro) / 2).backward()
    sync()
    want = {n: p.grad for n, p in plain.named_parameters()}
    got = {n: p.grad for n, p in model.named_parameters()}
    assert {n for n, g in got.items() if g is None} == {"plus_one", "halves.0", "token"}
    want = {n: g for n, g in want.items() if g is not None}
    check_close({n: got[n].cpu() for n in want}, want)


def reduced(num, **options):
    """Bytes of all reductions of a step."""
    model = wrapped()

    def step(batch):
        for micro in model.microbatches(batch, num, **options):
            (loss_of(model, micro) / num).backward()
        return [p.grad for p in model.parameters()]

    with spmd.sharding_preserving():
        program = spmd.trace(
            step, images(), model=model, batch_spec=(COPIES.data_axes,)
        )
    return sum(
        c.wire_bytes * c.num_runs
        for c in profiling.compile(program, "cpu:8").collectives
        if "reduce" in c.kind and c.role != "scalar"
    )


def test_two_are_reduced_in_the_bytes_of_one():
    assert reduced(2) <= reduced(1) < reduced(2, reduce_once=False)


def test_a_tensor_that_was_written_to_is_not_known_any_more():
    weight = nn.Parameter(torch.ones(2, 3))
    makings = Makings({weight: weight})
    add, turn = torch.Tensor.add, torch.Tensor.T.__get__
    one = makings.call(add, add, (weight, 1.0), {})
    turned = makings.call(turn, turn, (one,), {})
    made = makings.of(turned)
    assert made is not None and made.masters == (weight,)
    (parts,) = made.undo(torch.arange(12.0).reshape(2, 3, 2))
    assert parts.tolist() == torch.arange(12.0).reshape(2, 3, 2).mT.tolist()
    with torch.no_grad():
        one.add_(1)
    assert makings.of(one) is None


def test_what_meets_another_tensor_is_not_made_of_weights():
    weight = nn.Parameter(torch.ones(2))
    makings = Makings({weight: weight})
    add = torch.Tensor.add
    assert makings.call(add, add, (weight, torch.ones(2)), {}) is None
    assert makings.call(torch.exp, torch.exp, (torch.ones(2),), {}) is None


def test_a_constant_counts_as_it_was_when_a_weight_met_it():
    """As a scale does that the next microbatch writes to."""
    weight, scale = nn.Parameter(torch.ones(2)), torch.full((2,), 3.0)
    makings = Makings({weight: weight}, Unreduced(FLAT, (), rows=8, num_passes=1))
    mul = torch.Tensor.mul
    made = makings.of(makings.call(mul, mul, (weight, scale), {}))
    scale.zero_()
    assert made is not None
    (parts,) = made.undo(torch.ones(4, 2))
    assert parts.tolist() == [[3.0, 3.0]] * 4
