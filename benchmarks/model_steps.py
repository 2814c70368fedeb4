"""The training steps that benchmarks compile, traced from sizes alone.

Two models: `Decoder`, and Hugging Face's Llama 3 from its config. Nothing has memory,
so any size can be traced for any mesh.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
import torch.nn.functional as F
from torch import nn

import spmd
from fsdpv2 import FSDPv2, transformer_auto_wrap_policy


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a decoder-only transformer without biases.

    Attributes:
        layers: Number of blocks.
        hidden: Width between blocks.
        ffn: Width inside the gated feed-forward.
        heads: Attention heads.
        kv_heads: Heads of keys and values.
        vocab: Rows of the embedding and of the head, which are not tied.
        seq: Tokens in a row.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq: int


DECODER = Sizes(4, 2048, 5632, 16, 16, 32000, 1024)
# github.com/meta-llama/llama-models
LLAMA = {
    "8b": Sizes(32, 4096, 14336, 32, 8, 128256, 2048),
    "70b": Sizes(80, 8192, 28672, 64, 8, 128256, 2048),
    "405b": Sizes(126, 16384, 53248, 128, 8, 128256, 2048),
}
LAYER = {"decoder": "Block", "llama": "LlamaDecoderLayer"}
# Of a pair of weights the first is split by columns over tensor, the second by rows.
COLUMNS = {
    "decoder": ("q", "k", "v", "gate", "up"),
    "llama": ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
}
ROWS = {"decoder": ("o", "down"), "llama": ("o_proj", "down_proj")}
EMBED = {"decoder": "embed", "llama": "model.embed_tokens"}
HEAD = {"decoder": "head", "llama": "lm_head"}
NORMS = {"decoder": "**.norm*.weight", "llama": "**.*norm.weight"}
BLOCKS = {"decoder": "layers.*", "llama": "model.layers.*"}


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        dim, ffn, self.heads = sizes.hidden, sizes.ffn, sizes.heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q, self.k, self.v, self.o = (linear(dim, dim) for _ in range(4))
        self.gate, self.up = linear(dim, ffn), linear(dim, ffn)
        self.down = linear(ffn, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)  # [batch, seq, dim]
        q, k, v = (
            f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )  # [batch, heads, seq, dim / heads]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocab, sizes.hidden)
        self.layers = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden)
        self.head = linear(sizes.hidden, sizes.vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)  # [batch, seq] -> [batch, seq, dim]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # [batch, seq, vocab]


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def decoder_model(sizes: Sizes = DECODER) -> nn.Module:
    """The decoder in bfloat16, without memory."""
    with spmd.meta_parameters():
        return Decoder(sizes).to(torch.bfloat16)


def llama_model(sizes: Sizes) -> nn.Module:
    """Hugging Face's Llama in bfloat16; its rotary table has values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=sizes.layers,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.ffn,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        vocab_size=sizes.vocab,
        max_position_embeddings=sizes.seq,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        use_cache=False,
    )
    with spmd.meta_parameters():
        return LlamaForCausalLM(config).to(torch.bfloat16)


def weights_plan(kind: str, mesh: spmd.Mesh) -> spmd.Plan:
    """Weights split over tensor, as Megatron does, and over fsdp where there is one."""
    fsdp = "fsdp" if "fsdp" in mesh.sizes else None
    column, row = ("tensor", fsdp), (fsdp, "tensor")
    return spmd.Plan(
        {
            **{f"**.{name}.weight": column for name in COLUMNS[kind]},
            **{f"**.{name}.weight": row for name in ROWS[kind]},
            f"{EMBED[kind]}.weight": column,
            f"{HEAD[kind]}.weight": column,
            NORMS[kind]: (None,),
        }
    )


def megatron_plan(kind: str, mesh: spmd.Mesh, *, sequence: bool) -> spmd.Plan:
    """The same, and how values are split: by features inside, whole between.

    Args:
        kind: ``"decoder"`` or ``"llama"``.
        mesh: With an axis tensor.
        sequence: Between the parallel parts the sequence is split over tensor.
    """
    data = mesh.data_axes
    between = (data, "tensor" if sequence else None, None)  # [batch, seq, hidden]
    inside = (data, None, "tensor")
    names = (*ROWS[kind], EMBED[kind], BLOCKS[kind])
    return spmd.Plan(
        {},
        inputs={f"**.{name}": inside for name in ROWS[kind]},
        outputs={
            **{f"**.{name}": inside for name in COLUMNS[kind]},
            HEAD[kind]: inside,
            **{f"**.{name}" if name in ROWS[kind] else name: between for name in names},
        },
    ) | weights_plan(kind, mesh)


def fsdp(kind: str, model: nn.Module, mesh: spmd.Mesh, **options: Any) -> FSDPv2:
    """The model with a unit for each layer; `options` are the wrapper's."""
    policy = transformer_auto_wrap_policy({LAYER[kind]})
    return FSDPv2(model, mesh, auto_wrap_policy=policy, **options)


def trace(
    kind: str,
    model: nn.Module,
    mesh: spmd.Mesh,
    *,
    rows: int,
    seq: int,
    adam: bool,
    name: str,
) -> spmd.Program:
    """One step of AdamW or SGD.

    Args:
        kind: ``"decoder"`` or ``"llama"``.
        model: Annotated, and wrapped if it is to be.
        mesh: What it is annotated on.
        rows: On each device of the data axes.
        seq: Tokens in a row.
        adam: AdamW, or else SGD.
        name: What to call the program.
    """
    optimizer: torch.optim.Optimizer
    if adam:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if kind == "llama":
            loss = model(**batch).loss
        else:
            logits = model(batch["input_ids"]).flatten(0, 1).float()
            loss = F.cross_entropy(logits, batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    shape = (rows * mesh.axis_size(mesh.data_axes), seq)
    ids = torch.empty(shape, dtype=torch.int64, device="meta")
    batch = {"input_ids": ids, "labels": ids}
    return spmd.trace(
        step, batch, model=model, optimizer=optimizer, mesh=mesh, name=name
    )


def decoder(mesh: spmd.Mesh, *, layers: int, rows: int, name: str) -> spmd.Program:
    """SGD on the decoder under FSDPv2; weights split over tensor if there is one."""
    model = decoder_model(replace(DECODER, layers=layers))
    if "tensor" in mesh.sizes:
        spmd.shard_module(model, mesh, weights_plan("decoder", mesh))
    wrapped = fsdp("decoder", model, mesh)
    return trace(
        "decoder", wrapped, mesh, rows=rows, seq=DECODER.seq, adam=False, name=name
    )


def llama(mesh: spmd.Mesh, *, name: str) -> spmd.Program:
    """AdamW on Llama 3 8B under FSDPv2, a row on each device."""
    sizes = LLAMA["8b"]
    wrapped = fsdp("llama", llama_model(sizes), mesh)
    return trace("llama", wrapped, mesh, rows=1, seq=sizes.seq, adam=True, name=name)
