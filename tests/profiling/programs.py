"""A small decoder's training step, traced, and its schedules; each made once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import torch
import torch.nn.functional as F
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2
from profiling import Schedule, Target
from spmd import Mesh, Plan, Program
from tests.profiling.compilers import need

VOCAB, DIM, HIDDEN, HEADS, SEQ, LAYERS = 512, 128, 256, 4, 64, 2
TARGETS = ("cpu:8", "h100:2x8", "v5e:2x4")
PLAN = Plan(
    {
        "**.qkv.weight": ("tensor", "fsdp"),
        "**.up.weight": ("tensor", "fsdp"),
        "**.proj.weight": ("fsdp", "tensor"),
        "**.down.weight": ("fsdp", "tensor"),
        "embed.weight": ("tensor", "fsdp"),
        "head.weight": ("tensor", "fsdp"),
        "**.*norm*.weight": (None,),
    }
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (HEADS, -1))  # [b, s, heads, 3 * d]
        q, k, v = qkv.transpose(1, 2).chunk(3, dim=-1)  # [b, heads, s, d]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@functools.cache
def decoder_program(num_devices: int = 8, *, tensor: int = 2) -> Program:
    """One AdamW step on an ``fsdp`` x ``tensor`` mesh; with ``tensor=1`` pure FSDP."""
    axes = {"fsdp": num_devices // tensor}
    mesh = Mesh(axes if tensor == 1 else {**axes, "tensor": tensor})
    with spmd.meta_parameters():
        model = Decoder(LAYERS)
    if tensor > 1:
        spmd.shard_module(model, mesh, PLAN)
    wrapped = FSDPv2(model, mesh, min_shard_elements=1024)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = wrapped(batch["ids"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids: Any = jax.ShapeDtypeStruct((num_devices, SEQ), "int64")
    batch = {"ids": ids, "labels": ids}
    return spmd.trace(
        step, batch, model=wrapped, optimizer=optimizer, mesh=mesh, name="decoder"
    )


@functools.cache
def decoder_schedule(target: str, *, tensor: int = 2) -> Schedule:
    """That step compiled for a target; kept in the user's cache between sessions."""
    number = Target.parse(target).num_devices
    program = decoder_program(number, tensor=tensor)
    return profiling.compile(program, need(target))
