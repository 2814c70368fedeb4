"""A small Llama-style decoder: RMS norm, rotary attention, gated feed-forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from spmd import Mesh, Plan


def rotary(seq: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the positions, each [seq, dim]."""
    rates = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.outer(torch.arange(seq), rates)  # [seq, dim / 2]
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + dim/2) of x [batch, heads, seq, dim] by the position."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, seq: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        cos, sin = rotary(seq, dim // heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, dim = x.shape
        q, k, v = (
            f(x).view(batch, seq, self.heads, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )  # [batch, heads, seq, dim / heads]
        q, k = (turned(t, self.cos[:seq], self.sin[:seq]) for t in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, seq, dim))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int, seq: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim)
        self.attention = Attention(dim, heads, seq)
        self.ffn_norm = nn.RMSNorm(dim)
        self.ffn = FeedForward(dim, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    def __init__(
        self,
        vocab: int = 128,
        dim: int = 64,
        heads: int = 4,
        hidden: int = 128,
        num_layers: int = 2,
        seq: int = 16,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            Block(dim, heads, hidden, seq) for _ in range(num_layers)
        )
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Loss (where labels [batch, seq] are given) and logits [batch, seq, vocab]."""
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        if labels is None:
            return None, logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), (
            logits
        )


def megatron_plan(mesh: Mesh, *, sequence: bool) -> Plan:
    """Weights and values split over tensor, and over the mesh's data axes.

    With `sequence`, what is between the parallel parts is split on the sequence.
    """
    fsdp = "fsdp" if "fsdp" in mesh.sizes else None
    column, row = ("tensor", fsdp), (fsdp, "tensor")
    between = (mesh.data_axes, "tensor" if sequence else None, None)
    inside = (mesh.data_axes, None, "tensor")
    columns = ("q", "k", "v", "gate", "up")
    return Plan(
        {
            **{f"**.{name}.weight": column for name in (*columns, "embed", "head")},
            **{f"**.{name}.weight": row for name in ("o", "down")},
            "**.*norm.weight": (None,),
        },
        inputs={f"**.{name}": inside for name in ("o", "down")},
        outputs={
            **{f"**.{name}": inside for name in (*columns, "head")},
            **{f"**.{name}": between for name in ("o", "down", "embed")},
            "layers.*": between,
        },
    )
