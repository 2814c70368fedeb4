from collections import Counter

import pytest
import torch
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from fsdpv2._keeper import active, unreduced
from fsdpv2._unreduced import Unreduced
from spmd import Mesh
from spmd._stacked.layers import per_layer
from tests.fsdpv2.layers import (
    FLAT,
    check_close,
    device_ids,
    gradients,
    ids,
    loss_of,
    stack,
)
from tests.on_device import sync

COPIES = Mesh({"replica": 2, "fsdp": 4})
TENSOR = Mesh({"replica": 2, "fsdp": 2, "tensor": 2})
AXES = ("replica", "fsdp")
PLAN = spmd.Plan(
    {
        "**.up.weight": ("tensor", "fsdp"),
        "**.up.bias": ("tensor",),
        "**.down.weight": ("fsdp", "tensor"),
        "**.down.bias": (None,),
        "**.norm.*": (None,),
        "embed.weight": (None, "fsdp"),
        "head.weight": ("fsdp", None),
    },
    inputs={"**.down": (AXES, None, "tensor")},
)
MESHES = [(FLAT, None), (COPIES, None), (TENSOR, PLAN)]


def wrapped(mesh=COPIES, plan=None, **options):
    return FSDPv2(stack(), mesh, min_shard_elements=1, plan=plan, **options)


def grads(model):
    sync()
    found = {n: p.grad.cpu() for n, p in model.named_parameters()}
    return dict(per_layer(model, found.items()))


def accumulate(model, mesh=COPIES, num=2, batch=None):
    """A backward pass for each microbatch; gives the loss."""
    batch = device_ids(mesh=mesh) if batch is None else batch
    losses = []
    for micro in model.microbatches(batch, num):
        loss = loss_of(model, micro) / num
        loss.backward()
        losses.append(loss.detach())
    return sum(losses)


@pytest.fixture(scope="module")
def want():
    return gradients(stack(), ids())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mixed_precision": MixedPrecision(torch.float32)},
        {"remat": "full"},
        {"remat": "selective"},
        {"scan_layers": True},
    ],
    ids=["plain", "precision", "remat", "selective", "scan"],
)
@pytest.mark.parametrize(("mesh", "plan"), MESHES, ids=["fsdp", "copies", "tensor"])
def test_they_are_the_big_batchs(mesh, plan, options, want):
    model = wrapped(mesh, plan, **options)
    loss = accumulate(model, mesh)
    check_close({"loss": loss.cpu(), **grads(model)}, want)


@pytest.mark.parametrize("preserving", [False, True])
def test_with_and_without_our_products(preserving, want):
    model = wrapped()
    with spmd.sharding_preserving(preserving):
        loss = accumulate(model)
    check_close({"loss": loss.cpu(), **grads(model)}, want)


def test_one_backward_pass_for_all(want):
    model = wrapped()
    losses = [
        loss_of(model, m) / 2 for m in model.microbatches(device_ids(mesh=COPIES), 2)
    ]
    (losses[0] + losses[1]).backward()
    check_close({"loss": sum(losses).detach().cpu(), **grads(model)}, want)


def test_gradients_that_were_there_before_are_added_to(want):
    model = wrapped()
    accumulate(model)
    accumulate(model)  # nothing was zeroed
    loss_of(model, device_ids(mesh=COPIES)).backward()
    loss = want["loss"]
    three = {n: 3 * g for n, g in want.items() if n != "loss"}
    check_close({"loss": loss, **grads(model)}, {"loss": loss, **three})


def test_what_is_written_in_between_counts(want):
    """As where each microbatch's gradient is clipped."""
    model = wrapped()
    first, second = model.microbatches(device_ids(mesh=COPIES), 2)
    (loss_of(model, first) / 2).backward()
    alone = grads(model)
    for parameter in model.parameters():
        parameter.grad.mul_(3.0)
    (loss_of(model, second) / 2).backward()
    got = grads(model)
    assert got.keys() == alone.keys()
    for name, grad in got.items():
        wanted = want[name] + 2 * alone[name]
        torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=1e-5)


def test_clipped_as_those_of_the_big_batch(want):
    model, plain = wrapped(), stack()
    accumulate(model)
    norm = model.clip_grad_norm_(0.1)
    loss_of(plain, ids()).backward()
    wanted = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    torch.testing.assert_close(norm.cpu(), wanted)
    found = {n: p.grad for n, p in plain.named_parameters()}
    check_close(grads(model), found)


def test_half_precision_is_added_up_in_whole():
    """In parts of float32 also where they are reduced in bfloat16."""
    whole = wrapped(mixed_precision=MixedPrecision())
    half = wrapped(mixed_precision=MixedPrecision(reduce=None))
    accumulate(whole)
    accumulate(half)
    got, near = grads(half), grads(whole)
    for name, grad in got.items():
        assert grad.dtype == torch.float32
        scale = near[name].abs().max()
        assert (grad - near[name]).abs().max() <= 0.03 * scale, name


def test_others_get_theirs_as_ever(want):
    """Hooks of the user's, `autograd.grad`, and gradients of gradients."""
    model = wrapped()
    weight, seen = model.head.weight, []
    handle = weight.register_hook(lambda g: seen.append(g))
    accumulate(model)
    assert len(seen) == 2
    handle.remove()
    check_close({"head": grads(model)["head.weight"]}, {"head": want["head.weight"]})
    total = torch.zeros_like(weight)
    for again in model.microbatches(device_ids(mesh=COPIES), 2):
        loss = loss_of(model, again) / 2
        (grad,) = torch.autograd.grad(loss, weight, create_graph=True)
        total = total + grad.detach()
    check_close({"head": total.cpu()}, {"head": want["head.weight"]})


def test_a_pass_that_fails_leaves_nothing_behind(want):
    model = wrapped()
    first, _ = model.microbatches(device_ids(mesh=COPIES), 2)

    def fail(_grad):
        raise RuntimeError("as a test")

    handle = model.embed.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="as a test"):
        loss_of(model, first).backward()
    handle.remove()
    model.zero_grad()
    accumulate(model)
    check_close(grads(model), {n: g for n, g in want.items() if n != "loss"})


def test_only_microbatches_are_kept_in_parts():
    model = wrapped()
    assert active() is None
    batch = device_ids(mesh=COPIES)
    first, second = model.microbatches(batch, 2)
    with torch.no_grad():
        model(first)  # an evaluation in between is none
    assert model._awaited == 2
    loss_of(model, first).backward()
    loss_of(model, second).backward()
    assert model._awaited == 0 and model._unreduced is None
    model.microbatches(batch, 2, reduce_once=False)
    assert model._awaited == 0
    model.microbatches(batch, 1)
    assert model._awaited == 0


def test_rows_that_are_not_the_batchs_are_not():
    model = wrapped()
    weight = model.head.weight
    kept = Unreduced(COPIES, AXES, rows=8, num_passes=1)
    assert kept.is_batch(torch.ones(8, 4, 2)) and kept.is_batch(torch.ones(32, 2))
    assert not kept.is_batch(torch.ones(16, 8, 2))
    assert not kept.is_batch(torch.ones(12, 2))
    assert not Unreduced(COPIES, AXES, rows=4, num_passes=1).is_batch(torch.ones(4, 2))
    with torch.no_grad():  # no backward pass is at work
        assert not kept.takes(weight * 1, torch.ones(8, 2))
        other = Unreduced(FLAT, ("fsdp",), rows=8, num_passes=1)
        assert not other.takes(weight, torch.ones(8, 2))
    with unreduced(kept):
        assert active() is kept
        with torch.no_grad():
            assert active() is None


def reduced(mesh, target, num, precision=None, **options):
    """How often gradients are reduced over which axes, and all bytes for it."""
    with spmd.meta_parameters():
        model = stack(width=256)
    model = FSDPv2(model, mesh, mixed_precision=precision, **options)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        for micro in model.microbatches(batch, num):
            (loss_of(model, micro) / num).backward()
        optimizer.step()
        optimizer.zero_grad()

    batch = torch.zeros(256, 64, dtype=torch.int64)
    program = spmd.trace(step, batch, model=model, optimizer=optimizer)
    collectives = profiling.compile(program, target).collectives
    found = [c for c in collectives if c.role == "gradient reduction"]
    tensors = {m.tensor for c in found for m in c.moved}
    joined = any(" more" in t for t in tensors)  # as the TPU's compiler does
    assert joined or tensors == {n for n, _ in model.named_parameters()}
    # Of a joined one each piece has the name of all.
    each = (key for c in found for key in {(m.tensor, c.axes) for m in c.moved})
    return Counter(each), sum(c.wire_bytes * c.num_runs for c in found)


HOSTS = Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2})
SLICES = Mesh.hybrid(ici={"fsdp": 4}, dcn={"replica": 2})


@pytest.mark.parametrize(
    ("mesh", "target", "precision"),
    [
        (FLAT, "cpu:8", None),
        (COPIES, "cpu:8", None),
        (COPIES, "cpu:8", MixedPrecision(reduce=None)),
        pytest.param(COPIES, "h100:1x8", MixedPrecision(), marks=pytest.mark.slow),
        pytest.param(HOSTS, "h100:2x8", MixedPrecision(), marks=pytest.mark.slow),
        pytest.param(SLICES, "v5e:2x2*2", MixedPrecision(), marks=pytest.mark.slow),
    ],
    ids=["fsdp", "copies", "half", "one-host", "two-hosts", "two-slices"],
)
def test_each_gradient_is_reduced_as_often_as_for_one_batch(mesh, target, precision):
    """In the same bytes: nothing is added up by way of something bigger."""
    one, one_bytes = reduced(mesh, target, 1, precision)
    four, four_bytes = reduced(mesh, target, 4, precision)
    table = "embed.weight"  # that of one batch may be reduced whole
    assert {t for t, _ in four} == {t for t, _ in one}
    assert set(four.values()) == {1}
    assert {k for k in four if k[0] != table} == {k for k in one if k[0] != table}
    assert four_bytes == one_bytes or (table, mesh.axis_names) in one
    assert four_bytes <= one_bytes


def test_gradients_of_a_loops_layers_are_reduced_after_it():
    found, _ = reduced(COPIES, "cpu:8", 4, scan_layers=True)
    assert set(found.values()) == {1}


class Shifted(nn.Module):
    """Adds ones to a weight of as many entries as there are devices, as Gemma does."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 8, bias=False)
        self.scale = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return self.up(x) * (1.0 + self.scale)


def test_parts_are_not_gathered_where_a_model_has_as_many_ones():
    with spmd.meta_parameters():
        model = Shifted()
    model = FSDPv2(model, COPIES, min_shard_elements=1)

    def step(batch):
        for micro in model.microbatches(batch, 4):
            model(micro).square().sum().backward()
        return [p.grad for p in model.parameters()]

    program = spmd.trace(step, torch.zeros(64, 64), model=model)
    found = profiling.compile(program, "cpu:8").collectives
    moved = [(c, m) for c in found for m in c.moved]
    whole = [c.kind for c, m in moved if m.operand_bytes == 64 * 8 * 4]
    assert whole == ["reduce-scatter"]
    assert "activation" not in {m.role for _, m in moved}


def test_of_exchanged_rows_only_copies_are_reduced():
    """A large table's columns have everybody's ids: a part for each copy."""
    model = wrapped()
    (micro, _), table = model.microbatches(device_ids(mesh=COPIES), 2), model.embed
    kept = model._unreduced
    loss_of(model, micro).backward()
    assert kept._sums[id(table.weight)].axes == ("replica",)
    assert kept._sums[id(table.weight)].parts.shape == (2, *table.weight.shape)
    assert kept._sums[id(model.head.weight)].axes == AXES


def test_parts_over_other_axes_are_not_mixed(want):
    """As where a table is the last layer's weight too, in some backward passes."""
    model = wrapped()
    seen, takes = [], Unreduced.takes

    def differently(self, weight, *values, axes=None):
        found = takes(self, weight, *values, axes=axes)
        if weight is model.embed.weight and found:
            seen.append(axes)
            self.add(weight, torch.zeros(8, *weight.shape).to("xla"), wire=torch.float)
            assert self.has(weight) and takes(self, weight, *values)
            return takes(self, weight, *values, axes=axes)
        return found

    with pytest.MonkeyPatch.context() as patch:
        first, second = model.microbatches(device_ids(mesh=COPIES), 2)
        (loss_of(model, first) / 2).backward()
        patch.setattr(Unreduced, "takes", differently)
        (loss_of(model, second) / 2).backward()
    assert seen == [("replica",)]
    check_close(grads(model), {n: g for n, g in want.items() if n != "loss"})
