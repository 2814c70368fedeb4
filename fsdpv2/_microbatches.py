"""Split a batch into several that run one after the other."""

from __future__ import annotations

from typing import Any

import torch

from spmd import Mesh
from spmd._marking.mark import mark_sharding
from spmd._names.rebuild import leaves, rebuild


def microbatches(
    batch: Any, num_microbatches: int, mesh: Mesh, *, axes: tuple[str, ...]
) -> list[Any]:
    """Split a batch so that every device splits the rows that it has.

    Args:
        batch: Nested containers of tensors [batch, ...], split over `axes`.
        num_microbatches: How many.
        mesh: The mesh.
        axes: Axes that split the batch.

    Returns:
        Batches of the same form. Nothing crosses devices: where two devices have rows
        ``0 1 2 3 | 4 5 6 7``, two microbatches are ``0 1 | 4 5`` and ``2 3 | 6 7``.

    Raises:
        ValueError: Rows that do not divide.
    """
    ways = mesh.axis_size(axes)
    tensors = [(n, t) for n, t in leaves(batch) if isinstance(t, torch.Tensor)]
    for name, tensor in tensors:
        if tensor.ndim and tensor.shape[0] % (ways * num_microbatches):
            raise ValueError(
                f"microbatches: {name} {list(tensor.shape)}: {tensor.shape[0]} rows, "
                f"which {num_microbatches} microbatches over {ways} devices do not "
                f"divide; use a multiple of {ways * num_microbatches} rows"
            )

    def part(leaf: Any, i: int) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
            return leaf
        rest = leaf.shape[1:]
        rows = leaf.shape[0] // (ways * num_microbatches)
        value = leaf.reshape(ways, num_microbatches, rows, *rest)[:, i]
        value = value.reshape(ways * rows, *rest)
        return mark_sharding(value, mesh, (axes, *[None] * len(rest)))

    return [
        rebuild(batch, lambda leaf, i=i: part(leaf, i)) for i in range(num_microbatches)
    ]


def num_rows(batch: Any) -> int:
    """How many rows a batch has.

    Args:
        batch: Nested containers of tensors [batch, ...].

    Returns:
        0 where it has no such tensor.
    """
    for _, leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return leaf.shape[0]
    return 0
