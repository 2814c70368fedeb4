import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy

import profiling
import spmd
import spmd._preserve.dot
from fsdpv2 import FSDPv2
from fsdpv2._remat import check_remat, keep_products
from spmd import Mesh
from tests.fsdpv2.decoder import Block, Decoder
from tests.fsdpv2.layers import (
    FLAT,
    Layer,
    check_close,
    device_ids,
    gradients,
    ids,
    loss_of,
    stack,
)
from tests.on_device import sync


def keep_linear(context, operation, *args, **kwargs):
    if "dot" in str(operation) or "mm" in str(operation):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("remat", ["full", "selective", keep_linear])
@pytest.mark.parametrize("mesh", [FLAT, Mesh({"replica": 2, "fsdp": 4})], ids=repr)
def test_gradients_are_the_unsharded_models(remat, mesh):
    want = gradients(stack(), ids())
    model = FSDPv2(stack(), mesh, min_shard_elements=1, remat=remat)
    check_close(gradients(model, device_ids(mesh=mesh)), want)


@pytest.mark.parametrize("remat", ["full", "selective"])
def test_replayed_steps_train_as_the_unsharded_model(remat):
    def train(model, batch, run):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(batch):
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        step = run(step, model, optimizer)
        return [step(batch).item() for _ in range(3)]

    want = train(stack(), ids(), lambda step, *_: step)
    model = FSDPv2(stack(), FLAT, min_shard_elements=1, remat=remat)
    got = train(
        model,
        device_ids(),
        lambda s, m, o: spmd.compile_step(s, model=m, optimizer=o),
    )
    assert got == pytest.approx(want, abs=2e-5)


def test_without_gradients_nothing_is_kept_to_be_computed_again():
    model = FSDPv2(stack(), FLAT, remat="full")
    with torch.no_grad():
        out = model(device_ids())
    torch.testing.assert_close(out.cpu(), stack()(ids()))


@pytest.mark.parametrize("remat", ["full", "selective"])
def test_what_was_dropped_is_dropped_again(remat):
    """A mask drawn anew would leave a gradient where the value was dropped."""
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.ReLU())
    model = FSDPv2(module, FLAT, remat=remat)
    x = spmd.shard_batch(torch.rand(16, 32) + 1, FLAT).requires_grad_()
    out = model(x)
    out.sum().backward()
    sync()
    kept = out.detach().cpu() > 0
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(x.grad.cpu(), kept * 2.0)


def test_a_buffer_that_the_forward_updates_is_updated_once():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    model = FSDPv2(module, FLAT, remat="full")
    model(spmd.shard_batch(torch.rand(16, 4), FLAT)).square().sum().backward()
    sync()
    assert model[0].num_batches_tracked.item() == 1


def test_a_value_that_leaves_beside_the_output_has_a_gradient_too():
    class Aside(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(8, 8, bias=False)

        def forward(self, x):
            self.aside = torch.sin(self.up(x))
            return x * 2

    torch.manual_seed(0)
    module = Aside()
    x = torch.rand(8, 8)
    module(x)
    (want,) = torch.autograd.grad(module.aside.sum(), module.up.weight)
    del module.aside
    model = FSDPv2(module, FLAT, remat="full")
    model(spmd.shard_batch(x, FLAT))
    model.module.aside.sum().backward()
    torch.testing.assert_close(model.up.weight.grad.cpu(), want)


def test_backward_twice():
    model = FSDPv2(stack(), FLAT, remat="full")
    loss = loss_of(model, device_ids())
    loss.backward(retain_graph=True)
    sync()
    once = {n: p.grad.cpu() for n, p in model.named_parameters()}
    loss.backward()
    sync()
    twice = {n: p.grad.cpu() / 2 for n, p in model.named_parameters()}
    check_close(twice, once)


def compiled(remat):
    with spmd.meta_parameters():
        module = Decoder(dim=256, hidden=512, num_layers=4, seq=128)
    model = FSDPv2(module, FLAT, auto_wrap_policy=Block, remat=remat)

    def step(batch):
        loss = model(batch, batch)[0]
        loss.backward()
        return loss, [p.grad for p in model.parameters()]

    batch = torch.zeros(256, 128, dtype=torch.int64)
    program = spmd.trace(step, batch, model=model)
    return profiling.compile(program, "h100:1x8")


@pytest.fixture(scope="module")
def schedules():
    return {remat: compiled(remat) for remat in ("none", "full")}


def test_the_compiled_program_needs_less_memory(schedules):
    temp = {remat: s.memory.temp_bytes for remat, s in schedules.items()}
    assert temp["full"] < 0.5 * temp["none"]


@pytest.mark.slow
def test_keeping_products_lies_between(schedules):
    temp = {remat: s.memory.temp_bytes for remat, s in schedules.items()}
    selective = compiled("selective").memory.temp_bytes
    assert temp["full"] < 0.8 * selective < 0.7 * temp["none"]


def test_only_weights_and_their_gradients_move(schedules):
    for remat, schedule in schedules.items():
        roles = {c.role for c in schedule.collectives}
        assert roles <= {"weight gather", "gradient reduction", "scalar"}, remat


def test_layers_are_found_without_a_policy():
    model = FSDPv2(stack(), FLAT, remat="full")
    assert all(isinstance(layer, FSDPv2) for layer in model.layers)
    assert isinstance(model.layers[0].module, Layer)
    assert not isinstance(FSDPv2(stack(), FLAT).layers[0], FSDPv2)


def test_products_with_a_weight_are_kept():
    aten = torch.ops.aten
    assert keep_products(None, aten.mm.default)
    assert not keep_products(None, aten.bmm.default)
    dot = torch.ops.spmd.dot_general.default
    assert keep_products(None, dot, None, None, [1], [0], [], [])
    assert not keep_products(None, dot, None, None, [1], [0], [0], [0])


def test_an_unknown_choice():
    with pytest.raises(ValueError, match=r"remat='some'; 'none', 'full', 'selective'"):
        check_remat("some")
    with pytest.raises(ValueError, match="remat=None"):
        FSDPv2(stack(), FLAT, remat=None)
