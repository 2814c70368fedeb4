"""Training with a wrapper, and wrappers inside wrappers."""

import functools
from typing import Any

import pytest
import torch
import torch_xla.distributed.fsdp.wrap as theirs
from torch import nn
from torch.distributed.fsdp import wrap as torchs

import spmd
from fsdpv2 import FSDPv2, size_based_auto_wrap_policy
from spmd import Mesh
from tests.fsdpv2.wrapping import (
    DIM,
    FLAT,
    MESH,
    Block,
    all_split,
    batch,
    cpu_batch,
    loss_of,
    model,
    wrap,
)
from tests.on_device import as_tiles, native, sync


@pytest.mark.parametrize("mesh", [FLAT, MESH, Mesh({"fsdp": 4, "tensor": 2})], ids=repr)
@pytest.mark.parametrize("policy", [None, Block])
def test_an_optimizer_made_before_wrapping_trains_like_the_unsharded(mesh, policy):
    reference, module = model(), model()
    plain = torch.optim.AdamW(reference.parameters(), lr=0.01)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    wrapped = wrap(module, mesh, auto_wrap_policy=policy)
    for _ in range(3):
        for m, o, x in (
            (reference, plain, cpu_batch()),
            (wrapped, optimizer, batch(mesh=mesh)),
        ):
            o.zero_grad()
            loss = loss_of(m, x)
            loss.backward()
            o.step()
        sync()
    want = dict(reference.named_parameters())
    for name, parameter in wrapped.named_parameters():
        torch.testing.assert_close(parameter.detach().cpu(), want[name].detach())
    assert all_split(wrapped)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_clip_grad_norm_is_the_unsharded_models(norm_type):
    reference, wrapped = model(), wrap(model(), auto_wrap_policy=Block)
    loss_of(reference, cpu_batch()).backward()
    loss_of(wrapped, batch()).backward()
    want = nn.utils.clip_grad_norm_(reference.parameters(), 0.05, norm_type)
    got = wrapped.clip_grad_norm_(0.05, norm_type)
    assert want > 0.05
    sync()
    torch.testing.assert_close(got.cpu(), want)
    grads = {n: p.grad for n, p in reference.named_parameters()}
    for name, parameter in wrapped.named_parameters():
        torch.testing.assert_close(parameter.grad.cpu(), grads[name])


def test_accumulated_gradients_equal_the_big_batchs():
    big, small = wrap(model()), wrap(model())
    loss_of(big, batch(16)).backward()
    whole = cpu_batch(16)
    with small.no_sync():
        for half in whole.chunk(2):
            x = spmd.mark_sharding(half.to("xla"), FLAT, ("fsdp", None))
            (loss_of(small, x) / 2).backward()
    sync()
    for a, b in zip(big.parameters(), small.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad.cpu())
        assert native(b.grad) == as_tiles(FLAT, spmd.get_sharding(b).spec)


POLICIES = [
    Block,
    {"Block"},
    size_based_auto_wrap_policy(1000),
    functools.partial(
        torchs.transformer_auto_wrap_policy, transformer_layer_cls={Block}
    ),
    functools.partial(
        theirs.transformer_auto_wrap_policy, transformer_layer_cls={Block}
    ),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_are_wrapped_and_names_stay(policy):
    wrapped = wrap(model(), auto_wrap_policy=policy)
    plain = model()
    assert [type(m) for m in wrapped.layers] == [FSDPv2, FSDPv2]
    assert isinstance(wrapped.layers[0].module, Block)
    assert list(wrapped.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in wrapped.named_parameters()] == [
        n for n, _ in plain.named_parameters()
    ]
    assert [n for n, _ in wrapped.named_buffers()] == ["scale"]
    assert [n for n, _ in wrapped.named_modules()] == [
        n for n, _ in plain.named_modules()
    ]
    torch.testing.assert_close(wrapped(batch()).cpu(), plain(cpu_batch()))


def blocks_spec(wrapped: FSDPv2, mesh: Mesh) -> Any:
    seen = []
    wrapped.layers[0].register_forward_hook(
        lambda _m, _i, out: seen.append(spmd.get_sharding(out).spec)
    )
    wrapped(batch(mesh=mesh))
    return seen[0]


def test_the_batch_is_split_over_all_data_axes_in_nested_wrappers():
    wrapped = wrap(model(), MESH, auto_wrap_policy=Block)
    assert blocks_spec(wrapped, MESH) == (("replica", "fsdp"), None)


def test_the_extra_data_axis_reaches_nested_wrappers():
    mesh = Mesh({"mine": 2, "fsdp": 4})
    wrapped = wrap(model(), mesh, auto_wrap_policy=Block, extra_data_axis="mine")
    assert blocks_spec(wrapped, mesh) == (("mine", "fsdp"), None)
    assert wrapped.layers[0].batch_axes == ("mine", "fsdp")


def test_a_custom_wrapper_for_the_layers():
    made = []

    def wrapper(module: nn.Module, *args: Any, **kwargs: Any) -> FSDPv2:
        made.append((type(module), args, sorted(kwargs)))
        return FSDPv2(module, *args, **kwargs)

    mesh = Mesh({"mine": 2, "fsdp": 4})
    wrapped = wrap(
        model(),
        mesh,
        auto_wrap_policy=Block,
        auto_wrapper_callable=wrapper,
        extra_data_axis="mine",
    )
    assert made == [(Block, (), ["extra_data_axis", "mesh", "shard_output"])] * 2
    assert blocks_spec(wrapped, mesh) == (("mine", "fsdp"), None)


def test_wrapping_by_hand_inside_out():
    module = model()
    for i, layer in enumerate(module.layers):
        module.layers[i] = wrap(layer)
    wrapped = wrap(module)
    assert list(wrapped.state_dict()) == list(model().state_dict())
    torch.testing.assert_close(wrapped(batch()).cpu(), model()(cpu_batch()))


def test_a_nested_wrapper_takes_any_batch():
    """A position embedding gets one row, and the root's batch rule is the root's."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wpe = nn.Embedding(32, DIM)
            self.head = nn.Linear(DIM, DIM)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.arange(x.shape[1], device=x.device)[None]
            mask = torch.ones(x.shape[0], x.shape[1], 1, device=x.device)
            return self.head(x + self.wpe(at) * mask)

    wrapped = wrap(Positions(), auto_wrap_policy=theirs.always_wrap_policy)
    x = torch.randn(8, 4, DIM).to("xla")
    spmd.mark_sharding(x, FLAT, ("fsdp", None, None))
    assert wrapped(x).shape == (8, 4, DIM)
    with torch.no_grad():
        assert wrapped.module(torch.randn(1, 4, DIM).to("xla")).shape == (1, 4, DIM)


def test_module_runs_a_small_batch_unsplit():
    wrapped = wrap(model(), auto_wrap_policy=Block)
    with torch.no_grad():
        out = wrapped.module(cpu_batch(1).to("xla"))
    torch.testing.assert_close(out.cpu(), model()(cpu_batch(1)).detach())
