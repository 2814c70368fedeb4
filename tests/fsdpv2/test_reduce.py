import pytest
import torch
import torch.nn.functional as F
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from fsdpv2._reduce import reducing
from tests.fsdpv2.layers import FLAT, loss_of, stack
from tests.on_device import on_device


def wire_bytes(num_microbatches, reduce=torch.float32):
    with spmd.meta_parameters():
        module = stack(width=256)
    policy = MixedPrecision(reduce=reduce)
    model = FSDPv2(module, FLAT, min_shard_elements=1024, mixed_precision=policy)

    def step(batch):
        for micro in model.microbatches(batch, num_microbatches):
            (loss_of(model, micro) / num_microbatches).backward()
        return [p.grad for p in model.parameters()]

    batch = torch.zeros(256, 64, dtype=torch.int64)
    program = spmd.trace(step, batch, model=model)
    schedule = profiling.compile(program, "h100:1x8")
    found = [c for c in schedule.collectives if c.role == "gradient reduction"]
    return sum(c.wire_bytes for c in found), sum(len(c.moved) for c in found)


@pytest.fixture(scope="module")
def four():
    return wire_bytes(4)


def test_accumulated_gradients_are_reduced_once(four):
    """Each of the fourteen parameters once, for four microbatches."""
    matrices = 2 * 2 * 256 * 512 + 2 * 64 * 256
    vectors = 2 * (512 + 3 * 256)  # whole on every device: sent twice
    assert four == (4 * (matrices + 2 * vectors) * 7 / 8, 14)


@pytest.mark.slow
def test_as_for_one_batch(four):
    assert four == wire_bytes(1)


@pytest.mark.slow
def test_in_half_precision_they_are_half_as_many_bytes():
    whole, half = wire_bytes(1)[0], wire_bytes(1, None)[0]
    norms = 4 * 256 * 4 * 2 * 7 / 8  # layer norms reduce in float32
    assert half - norms == pytest.approx((whole - norms) / 2)


def test_a_table_with_split_rows_is_looked_up_in_pieces():
    """What is found is added up and scattered along the sequence; no ids move."""
    mesh = spmd.Mesh({"fsdp": 2, "tensor": 4})
    with spmd.meta_parameters():
        model = nn.Sequential(nn.Embedding(1024, 64), nn.Linear(64, 64))
    plan = spmd.Plan(
        {"0.weight": ("tensor", "fsdp"), "1.weight": (None, None), "1.bias": (None,)},
        outputs={"0": ("fsdp", "tensor", None)},
    )
    spmd.shard_module(model, mesh, plan)
    wrapped = FSDPv2(model, mesh, mixed_precision=MixedPrecision())

    def step(batch):
        wrapped(batch).square().mean().backward()
        return model[0].weight.grad

    program = spmd.trace(step, torch.zeros(8, 16, dtype=torch.int64), model=wrapped)
    schedule = profiling.compile(program, "h100:1x8")
    looked_up = [c for c in schedule.collectives if c.module.startswith("0")]
    found = [c.kind for c in looked_up if "tensor" in c.axes]
    assert found == ["reduce-scatter"]


def test_the_weight_gradient_has_the_dtype_it_is_computed_in():
    x = on_device(4, 8, dtype=torch.bfloat16).requires_grad_()
    weight, bias = on_device(2, 8), on_device(2)
    masters = [weight.requires_grad_(), bias.requires_grad_()]
    used = [m.detach().bfloat16() for m in masters]
    table = dict(zip(used, masters, strict=True))
    with reducing(table, dtype=torch.float32):
        out = F.linear(x, *used)
    want = F.linear(x.detach(), *used)
    torch.testing.assert_close(out.detach().cpu(), want.cpu())
    out.sum().backward()
    rows = x.detach().float().sum(0).cpu()
    torch.testing.assert_close(weight.grad.cpu(), rows.expand(2, 8))
    torch.testing.assert_close(bias.grad.cpu(), torch.full((2,), 4.0))
    assert x.grad.dtype == torch.bfloat16


def test_other_weights_are_left_to_torch():
    x, weight = on_device(4, 8), on_device(2, 8).requires_grad_()
    with reducing({}, dtype=torch.float32):
        F.linear(x, weight, torch.zeros(2).to("xla")).sum().backward()
        F.embedding(torch.zeros(3, dtype=torch.int64).to("xla"), weight)
    torch.testing.assert_close(weight.grad.cpu(), x.cpu().sum(0).expand(2, 8))


def test_a_bias_alone_may_be_of_another():
    x, weight = on_device(4, 8), on_device(2, 8).requires_grad_()
    used = weight.detach() * 1
    with reducing({used: weight}, dtype=torch.float32):
        out = F.linear(x, used, torch.ones(2).to("xla"))
    torch.testing.assert_close(out.detach().cpu(), (x @ weight.T + 1).detach().cpu())
