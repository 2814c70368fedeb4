"""A small model with named layers, and how it is trained here and unsharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import spmd
from spmd import Mesh
from spmd._stacked.layers import per_layer
from tests.on_device import sync

FLAT = Mesh({"fsdp": 8})
WIDTH, ROWS, SEQ, VOCAB = 32, 16, 4, 64


class Layer(nn.Module):
    def __init__(self, dropout: float = 0.0, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.drop = nn.Dropout(dropout)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.drop(F.gelu(self.up(self.norm(x)))))


class Stack(nn.Module):
    def __init__(
        self, num_layers: int = 2, dropout: float = 0.0, width: int = WIDTH
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList(Layer(dropout, width) for _ in range(num_layers))
        self.head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def stack(**options: Any) -> Stack:
    torch.manual_seed(0)
    return Stack(**options)


def ids(rows: int = ROWS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCAB, (rows, SEQ), generator=generator)


def device_ids(rows: int = ROWS, mesh: Mesh = FLAT) -> torch.Tensor:
    return spmd.shard_batch(ids(rows), mesh)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch).float()
    return F.cross_entropy(logits.flatten(0, 1), batch.flatten())


def gradients(
    model: nn.Module,
    batch: torch.Tensor,
    loss_of: Callable[..., torch.Tensor] = loss_of,
) -> dict[str, torch.Tensor]:
    """The loss and every parameter's gradient, on the CPU."""
    loss = loss_of(model, batch)
    loss.backward()
    if loss.is_xla:
        sync()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    found = dict(per_layer(model, {n: g.cpu() for n, g in found.items()}.items()))
    return {"loss": loss.detach().cpu(), **found}


def check_close(
    got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], *, rtol: float = 1e-4
) -> None:
    """Each is within a part of the largest entry of its own."""
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert got[name].shape == value.shape, name
        worst, scale = (got[name] - value).abs().max(), value.abs().max()
        assert scale > 0, name
        assert worst <= rtol * scale, f"{name}: {worst} of {scale}"
