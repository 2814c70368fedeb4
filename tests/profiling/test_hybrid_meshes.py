"""What a hybrid mesh promises, in compiled steps: fast axes stay inside a host."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pytest
import torch

import profiling
import spmd
from fsdpv2 import FSDPv2
from profiling import Collective, Schedule, Target
from spmd import Mesh
from tests.fsdpv2.decoder import Decoder, megatron_plan
from tests.profiling.compilers import need

SEQ, VOCAB, DIM = 64, 512, 128
COPIES = Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2})
HYBRID = Mesh.hybrid(ici={"fsdp": 2, "tensor": 4}, dcn={"replica": 2})
SLICES = Mesh.hybrid(ici={"fsdp": 2, "tensor": 2}, dcn={"replica": 2})
WRONG = Mesh({"tensor": 4, "fsdp": 4})  # the devices of a tensor group are 4 apart


@functools.cache
def compiled(mesh: Mesh, target: str) -> Schedule:
    """A step of a decoder of two layers, its sequence split where there is tensor."""
    with spmd.meta_parameters():
        model = Decoder(VOCAB, DIM, 4, 2 * DIM, seq=SEQ)
    if "tensor" in mesh.sizes:
        spmd.shard_module(model, mesh, megatron_plan(mesh, sequence=True))
    wrapped = FSDPv2(model, mesh, auto_wrap_policy={"Block"}, min_shard_elements=1024)
    optimizer = torch.optim.AdamW(wrapped.parameters())

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = wrapped(ids, ids)[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = torch.empty(16, SEQ, dtype=torch.int64, device="meta")
    program = spmd.trace(step, ids, model=wrapped, optimizer=optimizer, mesh=mesh)
    return profiling.compile(program, need(target))


def check_slow_axis(
    found: Iterable[Collective], *, fast: str, slow: str
) -> list[Collective]:
    """Only replica leaves a host or slice, and only for gradients and the loss."""
    far = [c for c in found if c.link == slow]
    assert {c.link for c in found} == {fast, slow}
    for collective in found:
        assert collective.axes, collective
        assert ("replica" in collective.axes) == (collective in far), collective
    for collective in far:
        for moved in collective.moved:
            is_loss = moved.operand_bytes <= 4 * 128  # a TPU pads it to 128 lanes
            assert moved.role == "gradient reduction" or is_loss, collective
    return far


def roles_over(found: Iterable[Collective], *axes: str) -> set[str]:
    return {m.role for c in found if c.axes == axes for m in c.moved}


def test_copies_on_two_hosts():
    found = compiled(COPIES, "h100:2x8").collectives
    far = check_slow_axis(found, fast="nvlink", slow="ib")
    assert {c.kind for c in far} == {"all-reduce"}
    assert {"weight gather", "gradient reduction"} <= roles_over(found, "fsdp")


def test_gradients_cross_in_pieces():
    """What crosses hosts is reduced inside them before: an eighth of each gradient."""
    found = compiled(COPIES, "h100:2x8").collectives
    crossing = {
        moved.tensor: moved.operand_bytes
        for c in found
        if c.axes == ("replica",)
        for moved in c.moved
        if moved.role == "gradient reduction"
    }
    assert crossing["head.weight"] == VOCAB * DIM * 4 // 8
    assert crossing["layers.0.ffn.down.weight"] == 2 * DIM * DIM * 4 // 8


def test_tensor_and_sequence_inside_two_hosts():
    found = compiled(HYBRID, "h100:2x8").collectives
    check_slow_axis(found, fast="nvlink", slow="ib")
    activations = [c for c in found if c.role == "activation"]
    of_tensor = [c for c in activations if c.axes == ("tensor",)]
    kinds = {c.kind for c in of_tensor}
    assert {"all-gather", "reduce-scatter"} <= kinds
    assert not any(c.crosses_hosts for c in of_tensor)
    assert {"weight gather", "gradient reduction"} <= roles_over(found, "fsdp")
    assert not any(c.role == "reshard" and c.crosses_hosts for c in found)


def test_without_it_the_report_says_that_tensor_crosses_hosts():
    found = compiled(WRONG, "h100:2x8").collectives
    of_tensor = [c for c in found if c.axes == ("tensor",)]
    assert of_tensor
    assert all(c.crosses_hosts and c.link == "ib" for c in of_tensor)


@pytest.mark.slow
def test_tensor_and_sequence_inside_two_slices():
    target = Target.parse("v5e:2x2*2")
    found = compiled(SLICES, target.text).collectives
    check_slow_axis(found, fast="ici", slow="dcn")
    assert "activation" in roles_over(found, "tensor")
    assert {"weight gather", "gradient reduction"} <= roles_over(found, "fsdp")
