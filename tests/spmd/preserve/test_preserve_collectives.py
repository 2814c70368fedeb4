"""Collectives of a compiled decoder block: splits over two leading dims survive."""

from __future__ import annotations

import copy
import functools
from collections import Counter

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import profiling
import spmd
from profiling._hlo.binary import read_binary
from spmd import Mesh, Plan
from tests.on_device import sync

MESH = Mesh({"fsdp": 2, "tensor": 4})
BATCH, SEQ, DIM, HEADS, VOCAB = 4, 32, 64, 8, 96
WHOLE = ("fsdp", None, None)  # [batch, seq, dim]
SPLIT = ("fsdp", "tensor", None)
COLUMNS = ("fsdp", None, "tensor")
COLUMN, ROW = ("tensor", "fsdp"), ("fsdp", "tensor")
WEIGHTS = {
    **{f"block.{n}.weight": COLUMN for n in ("q", "k", "v", "up")},
    **{f"block.{n}.weight": ROW for n in ("o", "down")},
    "block.norms.**": (None,),
    "embed.weight": COLUMN,
    "head.weight": COLUMN,
}


class Block(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm(DIM) for _ in range(2))
        for name in "qkvo":
            setattr(self, name, nn.Linear(DIM, DIM, bias=False))
        self.up = nn.Linear(DIM, 2 * DIM, bias=False)
        self.down = nn.Linear(2 * DIM, DIM, bias=False)
        self.joined, self.hidden = nn.Identity(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norms[0](x)
        q, k, v = (
            f(h).view(BATCH, SEQ, HEADS, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )  # [batch, heads, seq, dim / heads]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(self.joined(y.transpose(1, 2).reshape(BATCH, SEQ, DIM)))
        return x + self.down(self.hidden(F.gelu(self.up(self.norms[1](x)))))


class Model(nn.Module):
    def __init__(self, norm: type[nn.Module], vocab: int = VOCAB) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, DIM)
        self.block = Block(norm)
        self.head = nn.Linear(DIM, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embed(ids)))


def outputs(between: tuple[str | None, ...]) -> dict[str, tuple[str | None, ...]]:
    """Megatron's layout, with this spec between the parallel parts."""
    inner = {f"block.{n}": COLUMNS for n in ("q", "k", "v", "up", "joined", "hidden")}
    return {
        **inner,
        "block.o": between,
        "block.down": between,
        "embed": between,
        "head": COLUMNS,
    }


@functools.cache
def ops(
    target: str, on: bool, sequence: bool = False, norm: type[nn.Module] = nn.RMSNorm
) -> tuple[profiling.CollectiveOp, ...]:
    with spmd.meta_parameters():
        model = Model(norm)
    plan = Plan(WEIGHTS, outputs=outputs(SPLIT if sequence else WHOLE))
    spmd.shard_module(model, MESH, plan)

    def step(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        loss.backward()
        return loss

    ids = jax.ShapeDtypeStruct((BATCH, SEQ), "int64")
    with spmd.sharding_preserving(on):
        given = {"mesh": MESH, "batch_spec": ("fsdp",)}
        program = spmd.trace(step, ids, ids, model=model, **given)
    compiled = profiling.compile(program, target).compiled
    return profiling.collective_ops(read_binary(compiled.hlo, source=target))


PART = BATCH // 2 * SEQ * DIM * 4  # bytes of [batch, seq, dim] on one row of the mesh


def over_tensor(found):
    """Kinds of those that move activations between the devices of a row."""
    rows = [op for op in found if op.groups.largest_group == 4]
    return Counter(op.kind for op in rows if op.operand_bytes >= PART // 4)


each_target = pytest.mark.parametrize("target", ["cpu:8", "h100:1x8"])


@each_target
@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm])
def test_tensor_parallel_is_reductions_only(target, norm):
    found = over_tensor(ops(target, True, norm=norm))
    # Two forward, two backward, one of the head and one of the embedding.
    assert found == {"all-reduce": 6}


@each_target
def test_sequence_parallel_is_gathers_and_scatters(target):
    found = over_tensor(ops(target, True, True))
    assert found == {"all-gather": 6, "reduce-scatter": 6}


@each_target
@pytest.mark.parametrize("sequence", [False, True])
def test_fewer_bytes_on_the_wire_than_without(target, sequence):
    ours, theirs = (
        sum(op.step_wire_bytes for op in ops(target, on, sequence))
        for on in (True, False)
    )
    assert ours < 0.9 * theirs


@each_target
@pytest.mark.parametrize("sequence", [False, True])
def test_logits_are_not_gathered(target, sequence):
    """What is added up has one number for each token."""
    logits = BATCH // 2 * SEQ * VOCAB * 4 // 4
    of_loss = [
        op
        for op in ops(target, True, sequence)
        if (op.instruction.metadata.op_name or "").startswith("forward/amax")
    ]
    assert [op.kind for op in of_loss] == ["all-reduce"]
    assert of_loss[0].operand_bytes == BATCH // 2 * SEQ * 4
    gathers = [
        op.output_bytes for op in ops(target, True, sequence) if op.kind == "all-gather"
    ]
    assert all(size not in (4 * logits, 8 * logits) for size in gathers)


def test_without_it_the_heads_are_gathered():
    found = over_tensor(ops("cpu:8", False))
    assert found["all-gather"] >= 4


def loss_and_gradients(model, ids, labels):
    loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters()}}


@pytest.mark.filterwarnings("ignore:.*does not divide over")
@pytest.mark.parametrize("vocab", [VOCAB, VOCAB + 1])
@pytest.mark.parametrize("sequence", [False, True])
def test_loss_and_gradients_are_the_unsharded_models(sequence, vocab):
    torch.manual_seed(0)
    own = Model(nn.LayerNorm, vocab)
    model = spmd.to_device(copy.deepcopy(own))
    ids = torch.randint(vocab, (BATCH, SEQ))
    labels = ids.roll(-1, 1)
    labels[:, -1] = -100
    wanted = loss_and_gradients(own, ids, labels)
    plan = Plan(WEIGHTS, outputs=outputs(SPLIT if sequence else WHOLE))
    spmd.shard_module(model, MESH, plan)
    batch = spmd.shard_batch([ids, labels], MESH, spec=("fsdp",))
    with spmd.sharding_preserving():
        found = loss_and_gradients(model, *batch)
    sync()
    for name, value in wanted.items():
        gap = (found[name].cpu() - value).abs().max()
        assert gap <= 2e-6 * max(1.0, value.abs().max()), f"{name}: {gap}"
        assert name == "loss" or value.abs().max() > 1e-4
