"""A small model to wrap, and how it is split."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from tests.on_device import split_by

FLAT = Mesh({"fsdp": 8})
MESH = Mesh({"replica": 2, "fsdp": 4})
DIM = 16


class Block(nn.Module):
    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, num_layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(num_layers))
        self.head = nn.Linear(DIM, 3)
        self.register_buffer("scale", torch.full((DIM,), 2.0))
        self.note = "mine"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x * self.scale)

    def describe(self) -> str:
        return f"{self.note} {len(self.layers)}"


def model(num_layers: int = 2) -> Model:
    torch.manual_seed(0)
    return Model(num_layers)


def wrap(module: nn.Module, mesh: Mesh = FLAT, **kwargs: Any) -> FSDPv2:
    kwargs.setdefault("min_shard_elements", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some biases do not divide
        return FSDPv2(module, mesh, **kwargs)


def batch(rows: int = 8, mesh: Mesh = FLAT) -> torch.Tensor:
    torch.manual_seed(1)
    axes = tuple(a for a in mesh.axis_names if a in ("replica", "fsdp"))
    return spmd.mark_sharding(torch.randn(rows, DIM).to("xla"), mesh, (axes, None))


def cpu_batch(rows: int = 8) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, DIM)


def specs(module: nn.Module) -> dict[str, Any]:
    found = {n: spmd.get_sharding(p) for n, p in module.named_parameters()}
    return {n: a and a.spec for n, a in found.items()}


def all_split(wrapped: FSDPv2) -> bool:
    """Whether torch_xla and we agree that each parameter has its spec."""
    return all(
        split_by(p, wrapped.mesh, spmd.get_sharding(p).spec)
        for p in wrapped.parameters()
    )


WHOLE_SPECS = {
    "layers.0.norm.weight": ("fsdp",),
    "layers.0.norm.bias": ("fsdp",),
    "layers.0.up.weight": ("fsdp", None),
    "layers.0.up.bias": ("fsdp",),
    "layers.0.down.weight": (None, "fsdp"),
    "layers.0.down.bias": ("fsdp",),
    "head.weight": (None, "fsdp"),
    "head.bias": (None,),
}


def loss_of(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One for any output."""
    return module(x).square().mean()
