"""The embedding lookup in a table whose columns are split on an axis of the batch.

Under fully sharded data parallelism each device has some columns of every row. It
looks up those for everybody's ids, and the pieces are exchanged all to all: what moves
are the tokens of one device, and neither the table nor the tokens of all. Left to
itself the partitioner does so where the batch is split on that one axis, but gathers
the rows where it is split on an outer one too. A table with fewer rows than a device
has tokens is gathered instead, as any weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from spmd._marking.mark import get_sharding
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, SpecEntry, entry_axes, num_shards
from spmd._torch_xla import seam
from spmd._vocab.mark import marked


@dataclass(frozen=True, slots=True)
class Exchange:
    """How columns and rows change places.

    The batch is taken as two dims, the one split on the outer axes, the other on those
    that also split the columns: a move of one axis from one dim to another.

    Attributes:
        mesh: The mesh.
        outer: Ways in which the outer axes split the batch.
        columns: Spec of what is looked up: [outer, inner, *ids, columns].
        rows: Spec after the exchange, of the same dims.
        whole: The same of [batch, *ids, columns].
        table: Spec of the table.
        gathers: The table is smaller than what would be exchanged.
    """

    mesh: Mesh
    outer: int
    columns: Spec
    rows: Spec
    whole: Spec
    table: Spec
    gathers: bool


def exchange_of(weight: torch.Tensor, indices: torch.Tensor) -> Exchange | None:
    """How to look up ids in a table with split columns.

    Args:
        weight: The table [rows, columns].
        indices: Ids [batch, ...].

    Returns:
        None where too little is known, or the batch is not split on the same axes last.
    """
    table, ids = get_sharding(weight), get_sharding(indices)
    if table is None or ids is None or table.mesh != ids.mesh or not indices.ndim:
        return None
    mesh, (rows, columns) = table.mesh, table.spec
    moving, batch = entry_axes(columns), entry_axes(ids.spec[0])
    outer = batch[: len(batch) - len(moving)]
    if not moving or entry_axes(rows) or batch != (*outer, *moving):
        return None
    if indices.shape[0] % mesh.axis_size(batch) or weight.shape[1] % mesh.axis_size(
        moving
    ):
        return None
    rest = ids.spec[1:]
    tokens = indices.numel() // math.prod(num_shards(mesh, ids.spec))
    first, inner = _entry(outer), _entry(moving)
    return Exchange(
        mesh=mesh,
        outer=math.prod(mesh.axis_size(axis) for axis in outer),
        columns=(first, None, *rest, inner),
        rows=(first, inner, *rest, None),
        whole=(*ids.spec, None),
        table=table.spec,
        gathers=weight.shape[0] < tokens,
    )


def column_lookup(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int, exchange: Exchange
) -> torch.Tensor:
    """Look up ids.

    Args:
        weight: The table [rows, columns].
        indices: Ids [batch, ...].
        padding_idx: Row whose gradient is zero; none if below zero.
        exchange: From `exchange_of`.

    Returns:
        [batch, ..., columns], split as the ids.
    """
    way = _GatheredLookup if exchange.gathers else _ColumnLookup
    return way.apply(weight, indices, padding_idx, exchange)  # pyright: ignore[reportReturnType] - untyped in torch


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the gradients of both ways need."""
    weight, indices, ctx.padding_idx, ctx.exchange = inputs
    ctx.num_rows = weight.shape[0]
    ctx.save_for_backward(indices)


class _ColumnLookup(torch.autograd.Function):
    @staticmethod
    def forward(
        weight: torch.Tensor,
        indices: torch.Tensor,
        padding_idx: int,
        exchange: Exchange,
    ) -> torch.Tensor:
        found = weight[_everyones(indices, exchange)]
        found = marked(found, exchange.mesh, exchange.columns)
        found = marked(_again(found), exchange.mesh, exchange.rows)
        return marked(found.flatten(0, 1), exchange.mesh, exchange.whole)

    setup_context = staticmethod(_remember)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (indices,) = ctx.saved_tensors
        (grad,) = grads
        exchange = ctx.exchange
        if ctx.padding_idx >= 0:
            grad = grad.masked_fill((indices == ctx.padding_idx).unsqueeze(-1), 0)
        at, grad = exchanged(indices, grad, exchange)
        table = grad.new_zeros(ctx.num_rows, grad.shape[-1])
        return table.index_put((at,), grad, accumulate=True), None, None, None


class _GatheredLookup(torch.autograd.Function):
    @staticmethod
    def forward(
        weight: torch.Tensor,
        indices: torch.Tensor,
        padding_idx: int,
        exchange: Exchange,
    ) -> torch.Tensor:
        table = _again(weight.detach())
        seam.optimization_barrier([table])  # a value: as data it would move
        table = marked(table, exchange.mesh, (None, None))
        return marked(table[indices], exchange.mesh, exchange.whole)

    setup_context = staticmethod(_remember)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (indices,) = ctx.saved_tensors
        (grad,) = grads
        exchange = ctx.exchange
        if ctx.padding_idx >= 0:
            grad = grad.masked_fill((indices == ctx.padding_idx).unsqueeze(-1), 0)
        grad = marked(_again(grad), exchange.mesh, exchange.whole)
        table = grad.new_zeros(ctx.num_rows, grad.shape[-1])
        table = table.index_put((indices,), grad, accumulate=True)
        table = marked(table, exchange.mesh, (None, None))  # a sum over devices
        return marked(_again(table), exchange.mesh, exchange.table), None, None, None


def exchanged(
    indices: torch.Tensor, grad: torch.Tensor, exchange: Exchange
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a gradient adds to the columns that a device has.

    Args:
        indices: Ids [batch, ...].
        grad: [batch, ..., columns].
        exchange: From `exchange_of`.

    Returns:
        Ids [outer, inner, ...] and the gradient [outer, inner, ..., columns], the batch
        split on the outer axes alone.
    """
    grad = marked(_in_two(grad, exchange), exchange.mesh, exchange.rows)
    grad = marked(_again(grad), exchange.mesh, exchange.columns)
    return _everyones(indices, exchange), grad


def _in_two(tensor: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """[batch, ...] as [outer, inner, ...]: 16 rows over replica=2 as [2, 8]."""
    return tensor.unflatten(0, (exchange.outer, -1))


def _everyones(indices: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """Ids [outer, inner, ...] of all who have columns of the same rows."""
    found = marked(_in_two(indices, exchange), exchange.mesh, exchange.rows[:-1])
    return marked(_again(found), exchange.mesh, exchange.columns[:-1])


def _again(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a tensor that can be split in another way."""
    return tensor.clone()


def _entry(axes: tuple[str, ...]) -> SpecEntry:
    return axes if len(axes) > 1 else (axes[0] if axes else None)
