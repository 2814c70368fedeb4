"""What a hybrid mesh promises, in compiled steps: fast axes stay inside a host."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable

import pytest
import torch

import profiling
import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from profiling import Collective, Schedule, Target
from spmd import Mesh
from tests.fsdpv2.decoder import Decoder, megatron_plan
from tests.profiling.compilers import need
from tests.spmd.hf_models import CASES

SEQ, VOCAB, DIM = 64, 512, 128
COPIES = Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2})
HYBRID = Mesh.hybrid(ici={"fsdp": 2, "tensor": 4}, dcn={"replica": 2})
SLICES = Mesh.hybrid(ici={"fsdp": 2, "tensor": 2}, dcn={"replica": 2})
LAYERS = {"llama": "LlamaDecoderLayer", "gpt2": "GPT2Block"}
OUTER = Mesh.hybrid(ici={"tensor": 8}, dcn={"fsdp": 2})
WRONG = Mesh({"tensor": 4, "fsdp": 4})  # the devices of a tensor group are 4 apart


@functools.cache
def compiled_hf(
    name: str, mesh: Mesh, target: str, precision: torch.dtype | None = None
) -> Schedule:
    """The same of a Hugging Face model under `auto_plan`."""
    with spmd.meta_parameters():
        model = CASES[name].build()
    plan = spmd.auto_plan(model, mesh, sequence_parallel=True, min_shard_elements=1024)
    mixed = None if precision is None else MixedPrecision(precision)
    wrapped = FSDPv2(
        model,
        mesh,
        plan=plan,
        auto_wrap_policy={LAYERS[name]},
        min_shard_elements=1024,
        mixed_precision=mixed,
    )
    optimizer = torch.optim.AdamW(wrapped.parameters())

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = wrapped(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = torch.empty(16, 32, dtype=torch.int64, device="meta")
    batch = {"input_ids": ids, "labels": ids}
    program = spmd.trace(step, batch, model=wrapped, optimizer=optimizer, mesh=mesh)
    return profiling.compile(program, need(target))


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


def crossing(found: Iterable[Collective], *, fast: str, slow: str) -> list[Collective]:
    """What leaves a host or slice: all over replica, and nothing that is over tensor.

    Not even with other axes: gradients are added up inside first.
    """
    far = [c for c in found if c.link == slow]
    assert {c.link for c in found} == {fast, slow}
    assert not any("tensor" in c.axes for c in far), far
    for collective in found:
        assert collective.axes, collective
        assert ("replica" in collective.axes) == (collective in far), collective
    return far


def check_slow_axis(
    found: Iterable[Collective], *, fast: str, slow: str
) -> list[Collective]:
    """Only replica leaves a host or slice, and only for gradients and the loss."""
    far = crossing(found, fast=fast, slow=slow)
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


def undeclared(mesh: Mesh) -> Mesh:
    """The same devices, but nothing says which axes cross hosts."""
    return Mesh(mesh.sizes)


def far_bytes(schedule: Schedule) -> int:
    return sum(c.step_wire_bytes for c in schedule.collectives if c.crosses_hosts)


def num_runs(schedule: Schedule) -> int:
    return sum(c.num_runs for c in schedule.collectives)


def of_norms(schedule: Schedule) -> dict[tuple[str, ...], int]:
    """How many reductions have gradients of norms, by axes."""
    return Counter(
        c.axes
        for c in schedule.collectives
        if any("norm" in m.tensor and m.role == "gradient reduction" for m in c.moved)
    )


def test_gradients_of_norms_are_summed_inside_a_host_first():
    found, flat = (compiled(mesh, "h100:2x8") for mesh in (HYBRID, undeclared(HYBRID)))
    assert of_norms(flat) == {("replica", "fsdp", "tensor"): 1}
    assert of_norms(found) == {("fsdp", "tensor"): 1, ("replica",): 1}
    assert far_bytes(found) < far_bytes(flat)
    assert num_runs(found) == num_runs(flat) + 1


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("llama", None),
        pytest.param("llama", torch.bfloat16, marks=pytest.mark.slow),
        pytest.param("gpt2", None, marks=pytest.mark.slow),
        pytest.param("gpt2", torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_hugging_face_models_inside_two_hosts(name, precision):
    found, flat = (
        compiled_hf(name, mesh, "h100:2x8", precision)
        for mesh in (HYBRID, undeclared(HYBRID))
    )
    crossing(found.collectives, fast="nvlink", slow="ib")
    assert any(c.crosses_hosts and "tensor" in c.axes for c in flat.collectives)
    assert far_bytes(found) < far_bytes(flat)
    gathers = [
        [c for c in s.collectives if c.kind == "all-gather"] for s in (found, flat)
    ]
    assert len(gathers[0]) == len(gathers[1])


@pytest.mark.slow
def test_weights_split_between_hosts():
    """Weights are gathered over hosts then, but nothing over tensor crosses them."""
    found = compiled(OUTER, "h100:2x8")
    far = [c for c in found.collectives if c.crosses_hosts]
    assert {c.axes for c in far} == {("fsdp",)}
    assert far_bytes(found) <= far_bytes(compiled(undeclared(OUTER), "h100:2x8"))


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoder", "llama"])
def test_declared_slices_move_no_more_between_them(name):
    found, flat = (
        compiled(mesh, "v5e:2x2*2")
        if name == "decoder"
        else compiled_hf(name, mesh, "v5e:2x2*2")
        for mesh in (SLICES, undeclared(SLICES))
    )
    check_slow_axis(found.collectives, fast="ici", slow="dcn")
    assert far_bytes(found) <= far_bytes(flat)
    assert num_runs(found) <= num_runs(flat) + 1
