"""The training steps that bench_overlap.py compiles, traced from sizes alone."""

from __future__ import annotations

import os

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
import torch.nn.functional as F
from torch import nn

import spmd
from fsdpv2 import FSDPv2, transformer_auto_wrap_policy

VOCAB, DIM, HIDDEN, HEADS, SEQ = 32000, 2048, 5632, 16, 1024
# Of a pair of weights the first is split by columns over tensor, the second by rows.
TENSOR_PLAN = {
    "**.q.weight": ("tensor", "fsdp"),
    "**.k.weight": ("tensor", "fsdp"),
    "**.v.weight": ("tensor", "fsdp"),
    "**.o.weight": ("fsdp", "tensor"),
    "**.gate.weight": ("tensor", "fsdp"),
    "**.up.weight": ("tensor", "fsdp"),
    "**.down.weight": ("fsdp", "tensor"),
    "embed.weight": ("tensor", "fsdp"),
    "head.weight": ("tensor", "fsdp"),
    "**.norm*.weight": (None,),
}
# github.com/meta-llama/llama-models, Llama 3 8B
LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
LLAMA_LAYERS, LLAMA_SEQ = 32, 2048


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.q, self.k, self.v, self.o = (linear(DIM, DIM) for _ in range(4))
        self.gate, self.up = linear(DIM, HIDDEN), linear(DIM, HIDDEN)
        self.down = linear(HIDDEN, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)  # [batch, seq, dim]
        q, k, v = (
            f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)  # [batch, heads, seq, .]
            for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(DIM)
        self.head = linear(DIM, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)  # [batch, seq] -> [batch, seq, dim]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # [batch, seq, vocab]


def decoder(mesh: spmd.Mesh, *, layers: int, rows: int, name: str) -> spmd.Program:
    """One SGD step in bfloat16 with `rows` rows on each device of the batch's axes."""
    with spmd.meta_parameters():
        model = Decoder(layers).to(torch.bfloat16)
    if "tensor" in mesh.sizes:
        spmd.shard_module(model, mesh, spmd.Plan(TENSOR_PLAN))
    policy = transformer_auto_wrap_policy({"Block"})
    wrapped = FSDPv2(model, mesh, auto_wrap_policy=policy)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        ids, labels = batch
        logits = wrapped(ids).flatten(0, 1).float()
        loss = F.cross_entropy(logits, labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    whole = rows * mesh.axis_size(mesh.data_axes)
    ids = torch.empty(whole, SEQ, dtype=torch.int64, device="meta")  # [batch, seq]
    return spmd.trace(
        step, (ids, ids), model=wrapped, optimizer=optimizer, mesh=mesh, name=name
    )


def llama(mesh: spmd.Mesh, *, name: str) -> spmd.Program:
    """One AdamW step of Llama 3 8B in bfloat16, a row on each device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **LLAMA,
        num_hidden_layers=LLAMA_LAYERS,
        max_position_embeddings=LLAMA_SEQ,
        use_cache=False,
    )
    with spmd.meta_parameters():  # buffers, such as the rotary table, have values
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    policy = transformer_auto_wrap_policy({"LlamaDecoderLayer"})
    wrapped = FSDPv2(model, mesh, auto_wrap_policy=policy)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=3e-4)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = wrapped(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = torch.empty(mesh.size, LLAMA_SEQ, dtype=torch.int64, device="meta")
    batch = {"input_ids": ids, "labels": ids}  # [batch, seq]
    return spmd.trace(
        step, batch, model=wrapped, optimizer=optimizer, mesh=mesh, name=name
    )
