import pytest
import torch
from torch.distributed.fsdp import MixedPrecision as Fsdp1
from torch.distributed.fsdp import MixedPrecisionPolicy

import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from fsdpv2._precision import as_precision
from tests.fsdpv2.layers import (
    FLAT,
    check_close,
    device_ids,
    gradients,
    ids,
    loss_of,
    stack,
)

BF16, F32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize("reduce", [None, F32])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_gradients_are_the_unsharded_models_to_half_precision(reduce, remat):
    want = gradients(stack(), ids())
    policy = MixedPrecision(reduce=reduce)
    model = FSDPv2(
        stack(), FLAT, min_shard_elements=1, mixed_precision=policy, remat=remat
    )
    got = gradients(model, device_ids())
    assert {g.dtype for g in got.values()} == {F32}
    check_close(got, want, rtol=0.05)
    assert all(p.dtype == F32 for p in model.parameters())


def test_computing_in_the_dtype_there_is_changes_nothing():
    want = gradients(stack(), ids())
    policy = MixedPrecision(F32, reduce=torch.float64)
    model = FSDPv2(stack(), FLAT, mixed_precision=policy)
    check_close(gradients(model, device_ids()), want)


def test_a_replayed_step_updates_the_master_copy():
    model = FSDPv2(stack(), FLAT, mixed_precision=BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch):
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    before = model.head.weight.detach().cpu()
    compiled = spmd.compile_step(step, model=model, optimizer=optimizer)
    losses = [compiled(device_ids()).item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    moved = (model.head.weight.detach().cpu() - before).abs().max()
    assert 1e-4 < moved < 5e-4  # finer than bfloat16 could say
    assert optimizer.state[model.head.weight]["exp_avg"].dtype == F32


def test_a_model_of_half_precision_gets_a_master_copy():
    model = FSDPv2(stack().bfloat16(), FLAT, mixed_precision=MixedPrecision())
    assert {p.dtype for p in model.parameters()} == {F32}
    policy = MixedPrecision(param=None)
    model = FSDPv2(stack().bfloat16(), FLAT, mixed_precision=policy)
    assert {p.dtype for p in model.parameters()} == {BF16}


def test_inputs_and_outputs_are_cast():
    seen = []

    class Probe(torch.nn.Module):
        def forward(self, x, scale=None):
            seen.append((x.dtype, scale["a"].dtype))
            return {"y": x, "ids": torch.ones(8, dtype=torch.int64).to("xla")}

    x = spmd.shard_batch(torch.ones(8, 2), FLAT)
    for policy in (
        MixedPrecision(output=torch.float16),
        MixedPrecision(cast_inputs=False),
    ):
        out = FSDPv2(Probe(), FLAT, mixed_precision=policy)(x, scale={"a": x})
        seen.append((out["y"].dtype, out["ids"].dtype))
    assert seen == [
        (BF16, BF16),
        (torch.float16, torch.int64),
        (F32, F32),
        (F32, torch.int64),
    ]


def test_policies_of_torch():
    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=F32, output_dtype=F32)
    assert as_precision(policy) == MixedPrecision(BF16, F32, None, F32)
    policy = Fsdp1(param_dtype=BF16, reduce_dtype=BF16)
    assert as_precision(policy) == MixedPrecision(BF16, BF16, None)
    assert as_precision(MixedPrecisionPolicy()) is None
    assert as_precision(BF16) == MixedPrecision()
    assert as_precision(None) is None


def test_what_is_no_policy():
    with pytest.raises(TypeError, match=r"mixed_precision='bf16'; a fsdpv2\.Mixed"):
        FSDPv2(stack(), FLAT, mixed_precision="bf16")
    with pytest.raises(TypeError, match=r"compute=torch\.int64; a floating-point"):
        MixedPrecision(torch.int64)
    with pytest.raises(TypeError, match=r"reduce='float32'; a floating-point"):
        MixedPrecision(reduce="float32")
