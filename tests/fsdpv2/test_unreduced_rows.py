import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from fsdpv2._unreduced import Unreduced
from fsdpv2._unreduced_rows import summed, summed_product
from spmd import Mesh
from tests.fsdpv2.layers import FLAT, check_close, gradients
from tests.on_device import sync

COPIES = Mesh({"replica": 2, "fsdp": 4})
SLICES = Mesh.hybrid(ici={"fsdp": 4}, dcn={"replica": 2})
TENSOR = Mesh({"replica": 2, "fsdp": 2, "tensor": 2})
WIDTH, ROWS, SEQ = 32, 16, 16  # a device has 16 tokens of a microbatch of two


class Own(nn.Module):
    """As Hugging Face's models have it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


class Norms(nn.Module):
    def __init__(self, vocab, tied, **options):
        super().__init__()
        self.embed = nn.Embedding(vocab, WIDTH, **options)
        self.embed.weight.data.mul_(0.1)
        self.own = Own()
        self.rms = nn.RMSNorm(WIDTH)
        self.exact = nn.RMSNorm(WIDTH, eps=1e-5)
        self.plain = nn.LayerNorm(WIDTH, bias=False)
        self.both = nn.LayerNorm((4, WIDTH // 4))
        self.head = nn.Linear(WIDTH, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.rms(self.own(x)) + self.exact(x).mul(0.5)
        x = x + self.plain(x)
        x = x + self.both(x.unflatten(-1, (4, -1))).flatten(-2)
        return self.head(x)


def norms(vocab=64, tied=False, **options):
    torch.manual_seed(0)
    return Norms(vocab, tied, **options)


def ids_of(vocab):
    return torch.randint(vocab, (ROWS, SEQ), generator=torch.Generator().manual_seed(1))


def loss_of(model, batch):
    labels = batch.flatten() // 2  # not what went in, which a tied head knows
    return F.cross_entropy(model(batch).float().flatten(0, 1), labels)


def accumulated(model, vocab, num=2, loss_of=loss_of):
    batch = spmd.shard_batch(ids_of(vocab), model.mesh)
    losses = []
    for micro in model.microbatches(batch, num):
        loss = loss_of(model, micro) / num
        loss.backward()
        losses.append(loss.detach())
    sync()
    found = {n: p.grad.cpu() for n, p in model.named_parameters()}
    return {"loss": sum(losses).cpu(), **found}


def wrapped(mesh, model, **options):
    return FSDPv2(model, mesh, min_shard_elements=1, **options)


@pytest.fixture
def kept(monkeypatch):
    """Parameters whose gradients are in parts, with the axes of these."""
    seen = {}
    add = Unreduced.add

    def spy(self, weight, parts, *, wire, axes=None):
        seen[id(weight)] = axes or self.axes
        add(self, weight, parts, wire=wire, axes=axes)

    monkeypatch.setattr(Unreduced, "add", spy)
    return lambda model: {
        n: seen[id(p)] for n, p in model.named_parameters() if id(p) in seen
    }


@pytest.mark.parametrize("preserving", [True, False])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("vocab", [8, 64], ids=["small", "large"])
@pytest.mark.parametrize(
    "mesh", [FLAT, COPIES, SLICES], ids=["fsdp", "copies", "slices"]
)
def test_they_are_the_big_batchs(mesh, vocab, tied, preserving, kept):
    """A small table is summed over devices; of a large one rows are exchanged."""
    want = gradients(norms(vocab, tied), ids_of(vocab), loss_of)
    model = wrapped(mesh, norms(vocab, tied))
    with spmd.sharding_preserving(preserving):
        check_close(accumulated(model, vocab), want)
    names = {n for n, _ in model.named_parameters()}
    found = kept(model)
    every = tuple(a for a in mesh.axis_names if a in ("replica", "fsdp"))
    if vocab == 64 and not tied:
        outer = every[:-1]
        assert found.pop("embed.weight", ()) == outer
        names.remove("embed.weight")
    assert found == dict.fromkeys(names, every)


@pytest.mark.parametrize(
    "spec",
    [("fsdp", None), (None, "tensor"), (None, ("fsdp", "tensor")), ("tensor", "fsdp")],
)
def test_tables_that_a_plan_splits(spec):
    others = {"both.*": (None, None), "head.weight": ("fsdp", None), "*.*": (None,)}
    plan = spmd.Plan({"embed.weight": spec, **others})
    model = wrapped(TENSOR, norms(8), plan=plan)
    want = gradients(norms(8), ids_of(8), loss_of)
    check_close(accumulated(model, 8), want)


@pytest.mark.parametrize("vocab", [8, 64], ids=["small", "large"])
@pytest.mark.parametrize(
    "options",
    [{"padding_idx": 3}, {"padding_idx": -1}, {"scale_grad_by_freq": True}],
    ids=["padding", "last", "frequency"],
)
def test_options_of_a_lookup(options, vocab):
    """Frequencies are those of a microbatch, so that is compared with torch's."""
    plain = norms(vocab, **options)
    rows = ids_of(vocab).reshape(8, 2, 1, SEQ)  # as devices split them
    for i in range(2):
        (loss_of(plain, rows[:, i].reshape(8, SEQ)) / 2).backward()
    want = {n: p.grad for n, p in plain.named_parameters()}
    got = accumulated(wrapped(COPIES, norms(vocab, **options)), vocab)
    got.pop("loss")
    check_close(got, want)


def test_half_precision_is_added_up_in_whole():
    whole = accumulated(wrapped(COPIES, norms(8)), 8)
    half = MixedPrecision(reduce=None)
    near = accumulated(wrapped(COPIES, norms(8), mixed_precision=half), 8)
    for name, grad in near.items():
        assert grad.dtype == torch.float32
        scale = whole[name].abs().max()
        assert (grad - whole[name]).abs().max() <= 0.05 * scale, name


def test_products_that_are_no_norms(kept):
    """Of another width, with a scalar, and of a weight with itself."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Parameter(torch.ones(1))
            self.many = nn.Parameter(torch.linspace(0.5, 1.5, SEQ))

        def forward(self, x):
            return torch.mul(x * self.one, 2 * self.many) + self.many * self.many

    def loss_of(model, batch):
        return model(batch.float()).square().mean()

    plain, model = Scaled(), wrapped(COPIES, Scaled())
    want = gradients(plain, ids_of(8), loss_of)
    check_close(accumulated(model, 8, loss_of=loss_of), want)
    assert kept(model) == dict.fromkeys(("one", "many"), ("replica", "fsdp"))


class Sums(nn.Module):
    """Weights in ops that have other functions while a step is traced."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(WIDTH, WIDTH))
        for name in ("bias", "left", "right", "method"):
            setattr(self, name, nn.Parameter(torch.ones(WIDTH)))

    def forward(self, x):
        out = torch.addmm(self.bias, x.flatten(0, 1), self.matrix).view(x.shape)
        return (self.left + out + self.right).add(self.method)


@pytest.mark.parametrize("preserving", [True, False])
def test_a_traced_step_keeps_sums_and_products_too(preserving, kept):
    with spmd.meta_parameters():
        model = Sums()
    model = wrapped(COPIES, model)
    found = []

    def step(batch):
        for micro in model.microbatches(batch, 2):
            model(micro).square().sum().backward()
        found.append(kept(model))
        return [p.grad for p in model.parameters()]

    with spmd.sharding_preserving(preserving):
        spmd.trace(step, torch.zeros(ROWS, SEQ, WIDTH), model=model)
    every = {n: ("replica", "fsdp") for n, _ in model.named_parameters()}
    assert found == [every]


def test_rows_of_each_device_are_summed():
    grad = torch.arange(24.0).reshape(2, 3, 2, 2)
    assert summed(grad, dtype=torch.float64).tolist() == [[30, 36], [102, 108]]
    assert summed(grad, dtype=torch.float32, num=2).shape == (2, 2, 2)
    got = summed_product(grad, 2 * torch.ones_like(grad), dtype=torch.float32)
    assert got.tolist() == [[60, 72], [204, 216]]
