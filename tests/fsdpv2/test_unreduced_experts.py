"""Micro-batches of mixtures of experts: what their gradients are, and send."""

import pytest
import torch
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from fsdpv2._unreduced import Unreduced
from fsdpv2._unreduced_loop import InLoop
from spmd import Mesh, Plan
from spmd._experts.experts import rows_of, split_experts
from spmd._plans.module import take_apart
from spmd._stacked.layers import per_layer
from tests.fsdpv2.layers import check_close
from tests.on_device import sync
from tests.spmd.experts.test_experts import HIDDEN, KINDS, NUM, SIZES
from tests.spmd.hf_models import CASES

COPIES = Mesh({"replica": 2, "fsdp": 4})
EXPERT = Mesh({"replica": 2, "fsdp": 2, "expert": 2})
TENSOR = Mesh({"fsdp": 2, "expert": 2, "tensor": 2})
ROWS = 32  # of which a device has two in a microbatch


class Layer(nn.Module):
    def __init__(self, kind, form):
        super().__init__()
        experts, config, more = KINDS[kind]
        config = config(**(SIZES if "nemotron" not in kind else {}), **more)
        config.hidden_size = HIDDEN
        config._experts_implementation = "batched_mm"
        self.norm = nn.LayerNorm(HIDDEN)
        self.router = nn.Linear(HIDDEN, NUM)
        self.experts = experts(config)
        if form == "concatenated":  # of GPT-OSS, gate and up with biases
            self.experts.is_concatenated = True
        if form == "normed":
            self.experts.has_post_expert_norm = True
            self.experts.post_expert_norm = nn.RMSNorm(HIDDEN)

    def forward(self, x):
        tokens = self.norm(x).view(-1, HIDDEN)
        weights, indices = self.router(tokens).softmax(-1).topk(2, -1)
        return x + self.experts(tokens, indices, weights).view(x.shape)


class Model(nn.Module):
    def __init__(self, kind, form, num_layers):
        super().__init__()
        self.layers = nn.ModuleList(Layer(kind, form) for _ in range(num_layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def build(kind="mixtral", form="dense", num_layers=1):
    torch.manual_seed(0)
    model = Model(kind, form, num_layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    if form != "lookup":
        names = [n for n, _ in model.named_modules() if n.endswith("experts")]
        split_experts(model, names)
    return model


def wrapped(model, mesh, **options):
    """Experts as a plan has them where the mesh has an axis for them."""
    plan = None
    if "expert" in mesh.axis_names:
        experts = model.layers[0].experts
        specs = rows_of(experts, mesh).parameters
        patterns = {f"layers.*.experts.{k}": s for k, s in specs.items()}
        rest = {"**.norm.*": (None,), "**.router.bias": (None,)}
        if hasattr(experts, "post_expert_norm"):
            rest["**.post_expert_norm.*"] = (None,)
        plan = Plan({**patterns, **rest, "**.router.weight": (None, "fsdp")})
    return FSDPv2(model, mesh, min_shard_elements=1, plan=plan, **options)


def batch_of(seq=16, rows=ROWS):
    return torch.randn(rows, seq, HIDDEN, generator=torch.Generator().manual_seed(1))


def loss_of(model, x):
    return model(x).float().square().mean()


def of_big_batch(model, x):
    loss = loss_of(model, x)
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters()}}


def accumulated(model, x, at_once=False):
    x = spmd.shard_batch(x, model.mesh, (model.batch_axes,))
    with spmd.sharding_preserving():
        losses = [loss_of(model, micro) / 2 for micro in model.microbatches(x, 2)]
        for loss in [sum(losses)] if at_once else losses:
            loss.backward()
    sync()
    found = {n: p.grad.cpu() for n, p in model.named_parameters()}
    loss = sum(losses).detach().cpu()
    return {"loss": loss, **dict(per_layer(model, found.items()))}


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


BOTH = ("replica", "fsdp")
WIDER = {"extra_data_axis": "expert"}  # the batch is split over it too
SCAN = {"scan_layers": True}
FORMS = {
    "lookup": (COPIES, "lookup", {}, BOTH),
    "gathered": (COPIES, "dense", {"remat": "full"}, BOTH),
    "expert": (EXPERT, "dense", {}, BOTH),
    "wider": (EXPERT, "dense", WIDER, BOTH),
    "tensor": (TENSOR, "dense", WIDER, ("fsdp",)),
    "scan": (EXPERT, "dense", {**SCAN, **WIDER}, BOTH),
    "scanned-lookup": (COPIES, "lookup", SCAN, BOTH),
    "normed": (EXPERT, "normed", {}, BOTH),
    "concatenated": (EXPERT, "concatenated", {}, BOTH),
}
CHECKED = [(k, f) for k in KINDS for f in ("lookup", "wider", "scan")]
CHECKED += [("gpt_oss", f) for f in FORMS if ("gpt_oss", f) not in CHECKED]


@pytest.mark.parametrize(("kind", "form"), CHECKED)
def test_they_are_the_big_batchs(kind, form, kept):
    mesh, made, options, axes = FORMS[form]
    num_layers = 2 if "scan_layers" in options else 1
    want = of_big_batch(build(kind, made, num_layers), batch_of())
    model = wrapped(build(kind, made, num_layers), mesh, **options)
    check_close(accumulated(model, batch_of()), want)
    found = kept(model)
    names = {n for n, _ in model.named_parameters()}
    assert {n for n in names if "post_expert_norm" not in n} == found.keys()
    assert {a for n, a in found.items() if ".experts." in n} == {axes}


@pytest.mark.parametrize("options", [{}, SCAN], ids=["plain", "scan"])
def test_one_backward_pass_for_all(options, kept):
    want = of_big_batch(build(num_layers=2), batch_of())
    model = wrapped(build(num_layers=2), EXPERT, **WIDER, **options)
    check_close(accumulated(model, batch_of(), at_once=True), want)
    assert found_axes(kept(model)) == {BOTH}


def found_axes(found):
    return {a for n, a in found.items() if ".experts." in n}


@pytest.mark.parametrize("kind", ["gpt_oss", "mixtral"])
def test_tokens_that_experts_do_not_divide(kind, kept):
    """20 tokens of a microbatch, which 4 devices have, and 8 do not."""
    batch = batch_of(seq=5, rows=8)
    want = of_big_batch(build(kind, "normed"), batch)
    model = wrapped(build(kind, "normed"), EXPERT)
    check_close(accumulated(model, batch), want)
    assert found_axes(kept(model)) == {BOTH}


def test_others_get_theirs_as_ever(kept):
    """Hooks of the user's: one of two weights that are used as one."""
    want = of_big_batch(build("gpt_oss", "concatenated"), batch_of())
    model, seen = wrapped(build("gpt_oss", "concatenated"), EXPERT), []
    for name in ("up_proj", "gate_proj_bias", "down_proj_bias"):
        parameter = model.get_parameter(f"layers.0.experts.{name}")
        parameter.register_hook(lambda g: seen.append(g))
    check_close(accumulated(model, batch_of()), want)
    assert len(seen) == 6
    assert {n.rpartition(".")[2] for n in kept(model) if ".experts." in n} == {
        "gate_proj",
        "up_proj_bias",
        "down_proj",
    }


def test_a_lookup_with_a_hook(kept):
    want = of_big_batch(build(form="lookup"), batch_of())
    model = wrapped(build(form="lookup"), COPIES)
    model.layers[0].experts.down_proj.register_hook(lambda g: g)
    check_close(accumulated(model, batch_of()), want)
    assert "layers.0.experts.gate_up_proj" in kept(model)
    assert "layers.0.experts.down_proj" not in kept(model)


@pytest.mark.parametrize("form", ["lookup", "wider"])
def test_half_precision_is_added_up_in_whole(form):
    mesh, made, options, _ = FORMS[form]
    whole = of_big_batch(build("gpt_oss", made), batch_of())
    half = MixedPrecision(reduce=None)
    model = build("gpt_oss", made)
    model = wrapped(model, mesh, mixed_precision=half, **options)
    for name, grad in accumulated(model, batch_of()).items():
        assert grad.dtype == torch.float32
        scale = whole[name].abs().max()
        assert (grad - whole[name]).abs().max() <= 0.05 * scale, name


def test_a_loop_does_not_mix_parts_over_other_axes():
    model = wrapped(build(), EXPERT)
    weight = model.layers[0].experts.down_proj
    into = Unreduced(EXPERT, BOTH, rows=ROWS, num_passes=1)
    loop = InLoop(into, {0: weight})
    loop.enter([weight])
    with torch.no_grad():
        assert loop.takes(weight) and loop.takes(weight, axes=("replica",))
        parts = torch.zeros(2, *weight.shape, device="xla")
        loop.add(weight, parts, wire=torch.float32, axes=("replica",))
        assert loop.takes(weight, axes=("replica",)) and not loop.takes(weight)
        assert into.axes_of(weight) is None


def test_what_is_no_lookup_of_experts_is_torchs(kept):
    """Slices, ids of other shapes, and tables beside those of experts."""

    class Picked(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.Parameter(torch.linspace(0.5, 1.5, 32).view(8, 2, 2))
            self.biases = nn.Parameter(torch.linspace(0.5, 1.5, 16).view(8, 2))
            self.others = nn.Parameter(torch.linspace(0.5, 1.5, 32).view(8, 2, 2))
            self.table = nn.Parameter(torch.linspace(0.5, 1.5, 24).view(12, 2))

        def forward(self, ids):
            first = ids[:, 0]
            found = self.experts[-first].sum(-1) * self.biases[first]
            found = found + self.others[1:][ids].sum((1, 2))
            return found + self.others[:, 0][first] + self.table[first]

    ids = torch.arange(ROWS * 2).view(ROWS, 2) % 7
    want = of_big_batch(Picked(), ids)
    model = FSDPv2(Picked(), COPIES, min_shard_elements=1)
    check_close(accumulated(model, ids), want)
    assert kept(model) == {"experts": BOTH, "biases": BOTH}


def reduced(mesh, target, form, num, precision=None, **options):
    """Bytes of all reductions of experts' gradients."""
    num_layers = 2 if "scan_layers" in options else 1
    with spmd.meta_parameters():
        model = build("gpt_oss", form, num_layers)
    model = wrapped(model, mesh, mixed_precision=precision, **options)

    def step(batch):
        for micro in model.microbatches(batch, num):
            (loss_of(model, micro) / num).backward()
        return [p.grad for p in model.parameters()]

    spec = (model.batch_axes,)
    batch = batch_of(rows=64)
    program = spmd.trace(step, batch, model=model, batch_spec=spec)
    return sum(
        m.wire_bytes * c.num_runs
        for c in profiling.compile(program, target).collectives
        for m in c.moved
        if "reduce" in c.kind and ".experts." in m.tensor
    )


HOSTS = Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2})
EXPERT_HOSTS = Mesh.hybrid(ici={"fsdp": 2, "expert": 4}, dcn={"replica": 2})


def on_hosts(*case):
    mesh, *rest = case
    return pytest.param(mesh, "h100:2x8", *rest, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("mesh", "target", "form", "options"),
    [
        (COPIES, "cpu:8", "lookup", {}),
        (EXPERT, "cpu:8", "dense", WIDER),
        on_hosts(HOSTS, "lookup", {}),
        on_hosts(EXPERT_HOSTS, "dense", WIDER),
        on_hosts(EXPERT_HOSTS, "dense", {**WIDER, **SCAN}),
        on_hosts(EXPERT_HOSTS, "dense", {**WIDER, "precision": MixedPrecision()}),
    ],
    ids=["lookup", "expert", "far-lookup", "far", "far-scan", "far-half"],
)
def test_four_are_reduced_in_the_bytes_of_one(mesh, target, form, options):
    four = reduced(mesh, target, form, 4, **options)
    assert 0 < four == reduced(mesh, target, form, 1, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
@pytest.mark.parametrize("mesh", [COPIES, EXPERT], ids=["lookup", "expert"])
@pytest.mark.parametrize("options", [{}, SCAN], ids=["plain", "scan"])
def test_models(name, mesh, options):
    twin, module = CASES[name].build(), CASES[name].build()
    module.set_experts_implementation("batched_mm")
    plan = None
    if mesh is EXPERT:
        plan = spmd.auto_plan(module, mesh)
        take_apart(twin, plan)
    model = FSDPv2(module, mesh, min_shard_elements=1, plan=plan, **options)
    batch = CASES[name].batch()
    batch = {k: v.repeat(ROWS // len(v), 1) for k, v in batch.items()}
    loss = twin(**batch).loss
    loss.backward()
    losses = []
    with spmd.sharding_preserving():
        for micro in model.microbatches(spmd.shard_batch(batch, mesh), 2):
            part = model(**micro).loss / 2
            part.backward()
            losses.append(part.detach())
    sync()
    found = {n: p.grad.cpu() for n, p in model.named_parameters()}
    found = dict(per_layer(model, found.items()))
    want = {n: p.grad for n, p in twin.named_parameters()}
    check_close({"loss": sum(losses).cpu(), **found}, {"loss": loss.detach(), **want})
