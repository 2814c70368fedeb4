"""Random values inside scanned layers: the same twice, others in each layer."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fsdpv2._scan
import profiling
import spmd
from fsdpv2 import FSDPv2
from spmd._torch_xla import graph as torch_xla_graph
from spmd._torch_xla import trace as torch_xla_trace
from tests.counted import SameDraws
from tests.fsdpv2.layers import (
    FLAT,
    Stack,
    check_close,
    device_ids,
    gradients,
    ids,
    stack,
)
from tests.on_device import sync
from tests.spmd.training import check_exact, simple

WIDTH = 32


class Scaled(nn.Module):
    """A weight of ones, and what `draw` makes of its product."""

    def __init__(self, draw, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.draw = draw

    def forward(self, x):
        return self.draw(x * self.weight)


class Chain(nn.Module):
    def __init__(self, draw, num_layers=2, width=WIDTH):
        super().__init__()
        self.layers = nn.ModuleList(Scaled(draw, width) for _ in range(num_layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def chain(draw, **options):
    return scanned(Chain(draw, **options))


def ones(rows=64, seq=16, dtype=torch.float32):
    return spmd.shard_batch(torch.ones(rows, seq, WIDTH, dtype=dtype), FLAT)


def scanned(module):
    return FSDPv2(module, FLAT, scan_layers=True, min_shard_elements=1)


@pytest.fixture
def keys(monkeypatch):
    """Keys that are known, instead of drawn ones."""
    random = torch.Generator().manual_seed(3)
    keys = torch.randint(-(2**31), 2**31, (3, 2), generator=random).int()
    monkeypatch.setattr(fsdpv2._scan, "draw_keys", lambda n: keys[:n].to("xla"))
    return keys


class Attending(nn.Module):
    """Drops attention weights, and what comes out, in place."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 8)).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25 * self.training)
        y = y.transpose(1, 2).flatten(2)
        return x + F.dropout(y, 0.5, self.training, inplace=True)


def attending():
    module = stack()
    module.layers = nn.ModuleList(Attending() for _ in range(3))
    return module


def encoder():
    module = stack()
    module.layers = nn.ModuleList(
        nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.2, batch_first=True)
        for _ in range(3)
    )
    return module


@pytest.mark.parametrize(
    "build",
    [lambda: stack(num_layers=3, dropout=0.3), attending, encoder],
    ids=["dropout", "attention", "encoder"],
)
def test_gradients_are_those_of_a_model_with_the_same_masks(build, keys):
    plain, batch = build(), ids()
    with SameDraws(plain.layers, keys) as draws:
        want = gradients(plain, batch)
    assert draws.masks
    check_close(gradients(scanned(build()), device_ids()), want)


def test_inside_steps_that_keep_dims_too(keys):
    plain, batch = attending(), ids()
    with SameDraws(plain.layers, keys):
        want = gradients(plain, batch)
    model = scanned(attending())
    with spmd.sharding_preserving():
        check_close(gradients(model, device_ids()), want)


def test_forward_and_backward_drop_the_same():
    model = chain(lambda x: F.dropout(x, 0.5), num_layers=3)
    x = ones().requires_grad_()
    out = model(x)
    out.sum().backward()
    sync()
    torch.testing.assert_close(x.grad.cpu(), out.detach().cpu())
    kept = (out != 0).float().mean().item()
    assert kept == pytest.approx(0.5**3, abs=0.01)  # each layer drops others
    assert set(out.detach().cpu().unique().tolist()) == {0.0, 8.0}


def test_calls_and_steps_draw_others():
    model = chain(lambda x: F.dropout(x, 0.5))
    masks = []
    for _ in range(2):
        one, two = model(ones()), model(ones())  # of one step
        sync()
        masks += [m.detach().cpu().flatten() != 0 for m in (one, two)]
    found = torch.corrcoef(torch.stack(masks).float()) - torch.eye(4)
    assert found.abs().max() < 5 / masks[0].numel() ** 0.5
    for mask in masks:
        assert mask.float().mean().item() == pytest.approx(0.25, abs=0.01)


def test_the_same_seed_draws_the_same():
    model = chain(lambda x: F.dropout(x, 0.5))
    found = []
    for seed in (5, 5, 6):
        torch_xla_graph.set_seed(seed)
        found.append(model(ones()).detach().cpu())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda x: torch.bernoulli(torch.full_like(x, 0.3)), 0.3, 0.21**0.5),
        (lambda x: torch.empty_like(x).bernoulli_(torch.full_like(x, 0.3)), 0.3, None),
        (lambda x: torch.bernoulli(x, 0.3), 0.3, None),
        (torch.rand_like, 0.5, (1 / 12) ** 0.5),
        (lambda x: torch.rand(x.shape, device=x.device), 0.5, None),
        (lambda x: torch.empty_like(x).uniform_(2, 4), 3, (4 / 12) ** 0.5),
        (torch.randn_like, 0, 1),
        (lambda x: torch.randn(x.shape, device=x.device), 0, 1),
        (lambda x: torch.empty_like(x).normal_(2, 3), 2, 3),
        (lambda x: torch.normal(x, 2.0), 1, 2),
        (lambda x: torch.normal(2.0, x), 2, 1),
        (lambda x: torch.empty_like(x).exponential_(0.5), 2, 2),
        (lambda x: torch.randint_like(x, 2, 5), 3, (2 / 3) ** 0.5),
        (lambda x: torch.randint(5, x.shape, device=x.device).to(x), 2, 2**0.5),
        (lambda x: torch.empty_like(x).random_(2, 5), 3, (2 / 3) ** 0.5),
        (lambda x: torch.native_dropout(x, 0.25, True)[0], 1, None),
    ],
)
def test_each_distribution(draw, mean, deviation):
    out = chain(lambda x: draw(torch.ones_like(x)) + 0 * x)(ones()).detach().cpu()
    spread = out.std()
    if deviation is not None:
        assert spread.item() == pytest.approx(deviation, rel=0.03)
    assert abs(out.mean() - mean) < 5 * spread / out.numel() ** 0.5
    assert out.unique().numel() > 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype):
    for draw, most in ((torch.rand_like, 1), (torch.randn_like, 7)):
        out = chain(draw, num_layers=2).to(dtype)(ones(dtype=dtype))
        out = out.detach().cpu()
        assert out.dtype == dtype
        assert out.abs().max() < most
        assert out.unique().numel() > 200


def test_where_nothing_is_dropped_the_program_is_as_without():
    def program(module):
        return torch_xla_trace.hlo_text([module(device_ids()).sum()])

    want = program(scanned(stack()))
    assert program(scanned(stack(dropout=0.5)).eval()) == want
    assert program(scanned(stack(dropout=0.5))) != want


def test_a_replayed_step_is_a_lazy_one():
    def make():
        model = chain(lambda x: F.dropout(torch.tanh(x), 0.5), num_layers=3, width=16)
        return simple(model, torch.optim.AdamW(model.parameters(), lr=0.01))

    check_exact(make)


JAX = """
import sys
import spmd
spmd.init(cpu_devices=8, runtime=sys.argv[1])
import torch
from torch import nn
from fsdpv2 import FSDPv2
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(32, 4, 64, 0.2, batch_first=True)
layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
model = FSDPv2(layers, scan_layers=True, min_shard_elements=1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
def train(x):
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
step = spmd.compile_step(train, model=model, optimizer=optimizer)
x = spmd.shard_batch(torch.rand(16, 8, 32), model.mesh)
for _ in range(4):
    print(step(x).item())
"""


@pytest.mark.slow
def test_on_jax_the_losses_are_the_same(run_script):
    found = []
    for runtime in ("torch_xla", "jax"):
        result = run_script(JAX, runtime)
        assert result.rc == 0, result.stderr
        found.append([float(line) for line in result.stdout.split()])
    assert len(found[0]) == 4
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_hugging_face_models_train_with_their_dropout(name, keys):
    transformers = pytest.importorskip("transformers")
    if name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=64, n_embd=WIDTH, n_layer=3, n_head=4, embd_pdrop=0.0
        )
        kind = transformers.GPT2LMHeadModel
    else:
        config = transformers.BertConfig(
            vocab_size=64,
            hidden_size=WIDTH,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=64,
            is_decoder=True,
        )
        kind = transformers.BertLMHeadModel

    def build():
        torch.manual_seed(0)
        model = kind(config).train()
        for child in model.modules():  # outside the layers
            if type(child).__name__ == "BertEmbeddings":
                child.dropout.p = 0.0
        return model

    def loss(model, batch):
        return model(input_ids=batch, labels=batch, use_cache=False)[0]

    plain, batch = build(), ids()
    layers = plain.transformer.h if name == "gpt2" else plain.bert.encoder.layer
    with SameDraws(layers, keys) as draws:
        want = gradients(plain, batch, loss)
    assert len(draws.masks) == 9  # attention, and twice what is added
    got = gradients(scanned(build()), device_ids(), loss)
    for name in [n for n in want if n.endswith("key.bias")]:
        assert want.pop(name).abs().max() < 1e-9  # softmax takes no notice of it
        got.pop(name)
    check_close(got, want)


def compiled(num_layers, dropout):
    with spmd.meta_parameters():
        module = Stack(num_layers, dropout, width=256)
    model = FSDPv2(module, FLAT, scan_layers=True)

    def step(batch):
        loss = model(batch).square().mean()
        loss.backward()
        return loss, [p.grad for p in model.parameters()]

    batch = torch.zeros(64, 512, dtype=torch.int64)
    return profiling.compile(spmd.trace(step, batch, model=model), "h100:1x8")


@pytest.mark.slow
def test_masks_are_neither_kept_nor_sent():
    plain, small, large = compiled(2, 0.0), compiled(2, 0.1), compiled(10, 0.1)
    assert small.wire_bytes == plain.wire_bytes
    assert len(small.collectives) == len(plain.collectives)
    mask = 8 * 512 * 512  # bytes on a device, one for each element
    entered = 8 * 512 * 256 * 4
    base = compiled(10, 0.0).memory.temp_bytes - plain.memory.temp_bytes
    assert base > 7 * entered
    more = large.memory.temp_bytes - small.memory.temp_bytes
    assert more < base + mask


# What cannot be drawn


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda x: torch.poisson(x), r"Scaled aten\.poisson cannot be drawn so"),
        (lambda x: x + torch.rand(1).item(), r"aten\.rand draws on cpu, once for all"),
        (
            lambda x: x.long().random_().to(x),
            r"numbers from 0 to 9223372036854775808",
        ),
        (lambda x: F.rrelu(x, training=True), r"aten\.rrelu_with_noise.* cannot"),
    ],
)
def test_what_cannot_be_drawn_by_counting(draw, message):
    with pytest.raises(ValueError, match=message):
        chain(draw)(ones())
    sync()  # nothing of the loop is left behind


def test_a_generator_of_its_own():
    generator = torch.Generator()
    with pytest.raises(ValueError, match=r"aten\.\w+ has a generator of its own"):
        chain(lambda x: torch.empty_like(x).normal_(generator=generator))(ones())


def test_a_layer_that_draws_otherwise_with_gradients():
    def draw(x):
        return F.dropout(x, 0.5) if torch.is_grad_enabled() else x * 2

    loss = chain(draw)(ones()).sum()
    with pytest.raises(RuntimeError, match=r"drew \[\('bernoulli.*there, \[\] before"):
        loss.backward()
