"""What tests on the eight CPU devices share.

Importing this switches SPMD mode on: pytest imports every test module before it runs a
test, so no backward on the CPU comes first (see `spmd._runtime`).
"""

from __future__ import annotations

import re
from typing import Any

import torch
import torch_xla

import spmd
from spmd import Mesh
from spmd._meshes.sharding import HloSharding, to_hlo
from spmd._torch_xla import seam

spmd.init()


def on_device(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Counted-up data on the XLA device that nothing has used yet."""
    size = torch.Size(shape).numel()
    return torch.arange(size).to(dtype).reshape(shape).to("xla")


def native(tensor: torch.Tensor) -> HloSharding | None:
    """The sharding torch_xla has for a tensor, once nothing is in flight."""
    seam.wait()
    return seam.sharding_of(tensor)


def as_tiles(mesh: Mesh, spec: tuple[Any, ...]) -> HloSharding:
    """How torch_xla writes a spec."""
    return to_hlo(mesh, spec, form="tiles")


def split_by(tensor: torch.Tensor, mesh: Mesh, spec: tuple[Any, ...]) -> bool:
    """Whether torch_xla has this spec for a tensor."""
    return native(tensor) == as_tiles(mesh, spec)


def piece_shapes(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    """Shape of what each device holds, padding included."""
    return [tuple(data.shape) for _, data, _, _ in seam.local_shards(tensor)]


def constraints(*tensors: torch.Tensor) -> list[HloSharding]:
    """Shardings annotated in the graph that ends in these tensors, in order."""
    text = torch_xla._XLAC._get_xla_tensors_hlo(list(tensors))
    found = re.findall(r'custom_call_target="Sharding", sharding=(\{.*?\})', text)
    return [HloSharding.parse(sharding) for sharding in found]


def sync() -> None:
    """Run what was recorded, and wait."""
    torch_xla.sync(wait=True)
