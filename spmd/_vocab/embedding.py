"""The embedding lookup and its gradient, with no dim of the ids flattened.

XLA's gather and scatter take ids of any shape. Where the rows of the table are split,
each device looks up those that it has, and the results are added up: an all-reduce of
[batch, seq, columns], or a reduce-scatter where the sum is split. Left to itself the
partitioner gathers the table for the latter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from spmd._marking.mark import get_sharding
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, entry_axes, num_shards
from spmd._vocab.columns import column_lookup, exchange_of
from spmd._vocab.mark import marked
from spmd._vocab.rows import add_rows, take_rows


def embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.embedding`.

    Args:
        weight: The table [rows, columns].
        indices: Ids of any shape.
        padding_idx: Row whose gradient is zero.
        scale_grad_by_freq: Divide a row's gradient by how often it was looked up.
        sparse: No; XLA has no sparse gradients.

    Returns:
        [*ids, columns].

    Raises:
        ValueError: `sparse` is set, or the table has not two dims.
    """
    if sparse:
        raise ValueError(
            f"embedding: sparse=True for the table {list(weight.shape)}; XLA has no "
            f"sparse gradients: build the nn.Embedding with sparse=False"
        )
    if weight.ndim != 2:
        raise ValueError(
            f"embedding: the table has shape {list(weight.shape)}; [rows, columns] is "
            f"needed"
        )
    split = None if scale_grad_by_freq else _split_rows(weight, indices)
    exchange = None if scale_grad_by_freq else exchange_of(weight, indices)
    found: Any
    if torch._C._are_functorch_transforms_active():
        found = _composed(weight, indices, padding_idx, scale_grad_by_freq)
    elif split is not None:
        found = _SplitLookup.apply(weight, indices, padding_idx, split)
    elif exchange is not None:
        found = column_lookup(weight, indices, padding_idx, exchange)
    else:
        found = _Lookup.apply(weight, indices, padding_idx, scale_grad_by_freq)
    return found


def _composed(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int, by_frequency: bool
) -> torch.Tensor:
    """The lookup for `torch.func`, to which gradients of our own are unknown."""
    found = weight[indices]
    fixed = found.detach()
    if padding_idx >= 0:
        found = torch.where((indices == padding_idx).unsqueeze(-1), fixed, found)
    if by_frequency:
        times = _frequency(indices, weight.shape[0], found.dtype).unsqueeze(-1)
        found = fixed + (found - fixed) / times
    return found


def _frequency(
    indices: torch.Tensor, num_rows: int, dtype: torch.dtype
) -> torch.Tensor:
    """How often each id is among the ids."""
    ones = torch.ones_like(indices, dtype=dtype)
    times = torch.zeros(num_rows, dtype=dtype, device=indices.device)
    return times.index_put((indices,), ones, accumulate=True)[indices]


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        weight: torch.Tensor,
        indices: torch.Tensor,
        padding_idx: int,
        scale_grad_by_freq: bool,
    ) -> torch.Tensor:
        return weight[indices]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        weight, indices, ctx.padding_idx, ctx.scale_grad_by_freq = inputs
        ctx.num_rows = weight.shape[0]
        ctx.uneven = _rows_are_uneven(indices)
        ctx.save_for_backward(indices)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (indices,) = ctx.saved_tensors
        (grad,) = grads
        if ctx.uneven:
            indices, grad = indices.flatten(), grad.flatten(0, -2)
        if ctx.scale_grad_by_freq:
            times = _frequency(indices, ctx.num_rows, grad.dtype)
            grad = grad / times.unsqueeze(-1)
        if ctx.padding_idx >= 0:
            grad = grad.masked_fill((indices == ctx.padding_idx).unsqueeze(-1), 0)
        table = grad.new_zeros(ctx.num_rows, grad.shape[-1])
        return table.index_put((indices,), grad, accumulate=True), None, None, None


def _rows_are_uneven(indices: torch.Tensor) -> bool:
    """Whether a batch of ids does not divide over the axes that split it.

    The gradient is then torch's, of flat ids: XLA's partitioner (of torch_xla 2.9)
    aborts over a scatter with such a batch.
    """
    ids = get_sharding(indices)
    if ids is None or not indices.ndim:
        return False
    return indices.shape[0] % ids.mesh.axis_size(entry_axes(ids.spec[0])) != 0


@dataclass(frozen=True, slots=True)
class _Split:
    """How a table is split on its rows, and what is looked up in it.

    Attributes:
        mesh: The mesh.
        ways: Pieces of the rows.
        table: Spec of the table as [pieces, rows of one, columns].
        found: Spec of what each piece has of the result: [pieces, *ids, columns].
    """

    mesh: Mesh
    ways: int
    table: Spec
    found: Spec


def _split_rows(weight: torch.Tensor, indices: torch.Tensor) -> _Split | None:
    """What is known of a table with split rows; None if that is too little.

    Where the batch is split on an axis of the rows, as under FSDP, the table is a
    weight to gather and not a vocabulary to look up in pieces.
    """
    table, ids = get_sharding(weight), get_sharding(indices)
    base = indices._base
    if ids is None and base is not None and base.shape == indices.shape:
        ids = get_sharding(base)
    if table is None or ids is None or table.mesh != ids.mesh or not indices.ndim:
        return None
    rows, columns = table.spec
    (ways, _), taken = num_shards(table.mesh, table.spec), set(entry_axes(rows))
    if ways == 1 or taken & set(entry_axes(ids.spec[0])):
        return None
    if _rows_are_uneven(indices):
        return None
    kept = (None if taken & set(entry_axes(entry)) else entry for entry in ids.spec)
    return _Split(table.mesh, ways, (rows, None, columns), (rows, *kept, None))


class _SplitLookup(torch.autograd.Function):
    @staticmethod
    def forward(
        weight: torch.Tensor, indices: torch.Tensor, padding_idx: int, split: _Split
    ) -> torch.Tensor:
        size = -(-weight.shape[0] // split.ways)  # rows of a piece, as XLA pads
        table = F.pad(weight, (0, 0, 0, split.ways * size - weight.shape[0]))
        table = marked(table.view(split.ways, size, -1), split.mesh, split.table)
        rows, has = _places(indices, split.ways, size)
        found = marked(take_rows(table, rows), split.mesh, split.found)
        return found.masked_fill(~has.unsqueeze(-1), 0).sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        weight, indices, ctx.padding_idx, ctx.split = inputs
        ctx.num_rows = weight.shape[0]
        ctx.save_for_backward(indices)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (indices,) = ctx.saved_tensors
        args = (indices, ctx.num_rows, ctx.padding_idx, ctx.split)
        return _SplitGradient.apply(grads[0], *args), None, None, None


class _SplitGradient(torch.autograd.Function):
    """Has a gradient of its own: looking up what was added up."""

    @staticmethod
    def forward(
        grad: torch.Tensor,
        indices: torch.Tensor,
        num_rows: int,
        padding_idx: int,
        split: _Split,
    ) -> torch.Tensor:
        size = -(-num_rows // split.ways)
        rows, has = _places(indices, split.ways, size)
        if padding_idx >= 0:
            has = has & (indices != padding_idx)
        wide = grad.expand(split.ways, *grad.shape)
        wide = wide.masked_fill(~has.unsqueeze(-1), 0)
        wide = marked(wide, split.mesh, split.found)
        rows, wide = _columns_apart(rows, wide, split)
        table = marked(add_rows(rows, wide, size), split.mesh, split.table)
        return table.flatten(0, 1)[:num_rows]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, indices, _, ctx.padding_idx, ctx.split = inputs
        ctx.save_for_backward(indices)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (indices,) = ctx.saved_tensors
        found: Any = _SplitLookup.apply(grads[0], indices, -1, ctx.split)
        if ctx.padding_idx >= 0:
            padding = (indices == ctx.padding_idx).unsqueeze(-1)
            found = found.masked_fill(padding, 0)
        return found, None, None, None, None


def _columns_apart(
    rows: torch.Tensor, wide: torch.Tensor, split: _Split
) -> tuple[torch.Tensor, torch.Tensor]:
    """Have an axis split the columns, as in the table, that splits the batch so far.

    An all-to-all over this axis alone. Left to itself the partitioner gathers the rows
    of all devices where an outer axis splits the batch too, which may cross hosts.

    Args:
        rows: [pieces, batch, ...].
        wide: [pieces, batch, ..., columns].
        split: What is known of the table.

    Returns:
        The same with the batch as [outer, inner]; unchanged where no axis is outer.
    """
    pieces, batch, *rest, _ = split.found
    moving, axes = entry_axes(split.table[2]), entry_axes(batch)
    outer = axes[: len(axes) - len(moving)]
    if not moving or not outer or axes != (*outer, *moving):
        return rows, wide
    mesh = split.mesh
    ways = mesh.axis_size(outer)
    if wide.shape[1] % mesh.axis_size(axes) or wide.shape[-1] % mesh.axis_size(moving):
        return rows, wide
    rows, wide = (t.unflatten(1, (ways, -1)) for t in (rows, wide))
    rows = marked(rows, mesh, (pieces, outer, moving, *rest))
    rows = marked(rows.clone(), mesh, (pieces, outer, None, *rest))
    wide = marked(wide, mesh, (pieces, outer, moving, *rest, None))
    return rows, marked(wide.clone(), mesh, (pieces, outer, None, *rest, moving))


def _places(
    indices: torch.Tensor, ways: int, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each piece of the table looks for each id, and whether it has it.

    Id 7 in pieces of 3 rows is row 1 of piece 2; the others look at row 0, in vain.
    """
    piece = torch.arange(ways, device=indices.device, dtype=indices.dtype)
    rows = indices - piece.view(ways, *[1] * indices.ndim) * size
    has = (rows >= 0) & (rows < size)
    return rows.masked_fill(~has, 0), has
