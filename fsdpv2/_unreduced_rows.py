"""Norms and lookups whose weights' gradients may stay where they are made.

Values, and the gradient of what goes in, are those of torch's functions. What a norm's
rows add to the gradient of its weight is summed over each device's own rows; what is
looked up in a table is added to a table of zeros by each device, for its own ids.

    ids 3 1 | 3 3 on two devices, gradients a b | c d of the rows that were found
    parts:  [0 b 0 a], [0 0 0 c + d]   a table for each device
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fsdpv2._how import How
from fsdpv2._made import Made
from fsdpv2._twice import twice
from spmd import Annotation
from spmd._marking.mark import get_sharding, remember
from spmd._meshes.spec import entry_axes
from spmd._torch_xla import seam
from spmd._vocab.columns import Exchange, exchange_of, exchanged
from spmd._vocab.rows import add_rows


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over the last dims.

    Attributes:
        call: The norm of [..., *shape] with weights or None.
        num: Over how many dims.
        widens: Whether it may be asked for another dtype than its input has.
    """

    call: Callable[..., torch.Tensor]
    num: int
    widens: bool

    def normalised(self, x: torch.Tensor) -> torch.Tensor:
        """What the weight is multiplied by, in float32 at least where that may be."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return self.call(x.to(wide) if self.widens else x, None, None)


class NormRows(torch.autograd.Function):
    """A norm with a weight, a bias, or both."""

    @staticmethod
    def forward(
        ctx: Any,
        norm: Norm,
        x: torch.Tensor,
        made: Sequence[Made | None],
        how: How,
        *masters: torch.Tensor | None,
    ) -> torch.Tensor:
        """Normalise.

        Args:
            ctx: What the backward pass needs.
            norm: The norm.
            x: [..., *shape].
            made: Weight and bias.
            how: How their gradients are made.
            *masters: Who has the gradients, of both.

        Returns:
            Shape of `x`.
        """
        ctx.norm, ctx.masters, ctx.how, ctx.made = norm, masters, how, made
        weights = [None if m is None else m.value.detach() for m in made]
        ctx.save_for_backward(x, *weights)
        return norm.call(x, *weights)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of `x`, and of those weights that are not kept in parts.

        Args:
            ctx: From the forward pass.
            *grads: One, of the result.

        Returns:
            As many as the forward pass has arguments.
        """
        x, *weights = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            (of_x,), of_weights = twice(ctx.norm.call, (x,), ctx.made, grad)
            return None, of_x, None, None, *of_weights
        wanted = [ctx.needs_input_grad[i] for i in (1, 4, 5)]
        if wanted[1] and _keep_product(ctx, grad, x):
            wanted[1] = False
        if wanted[2] and _keep_sum(ctx, grad):
            wanted[2] = False
        given = [None if t is None else t.detach() for t in (x, *weights)]
        asked = [t for t, w in zip(given, wanted, strict=True) if w and t is not None]
        found = iter(gradients(ctx.norm.call, given, asked, grad))
        of_x, of_weight, of_bias = (next(found) if w else None for w in wanted)
        return None, of_x, None, None, of_weight, of_bias


def gradients(
    call: Callable[..., torch.Tensor],
    given: Sequence[torch.Tensor | None],
    asked: Sequence[torch.Tensor],
    grad: torch.Tensor,
) -> Sequence[torch.Tensor]:
    """Those of a function's arguments; XLA finds that its value is known already.

    Args:
        call: The function.
        given: Its arguments, without a history.
        asked: Those of them whose gradients are wanted.
        grad: That of its value.

    Returns:
        As many as are asked for.
    """
    if not asked:
        return ()
    for one in asked:
        one.requires_grad_()
    with torch.enable_grad():
        out = call(*given)
    return torch.autograd.grad(out, asked, grad)


def _keep_product(ctx: Any, grad: torch.Tensor, x: torch.Tensor) -> bool:
    weight, _ = ctx.masters
    if ctx.how.into is None or not ctx.how.into.is_batch(grad, x):
        return False  # before anything is computed
    make = functools.partial(summed_product, num=ctx.norm.num)
    values = grad, ctx.norm.normalised(x)
    how = ctx.how.widened()
    keep = how.keep_sum if ctx.norm.num == 1 else how.keep
    return keep(Made((weight,), weight), values, make)


def _keep_sum(ctx: Any, grad: torch.Tensor) -> bool:
    make = functools.partial(summed, num=ctx.norm.num)
    how, bias = ctx.how.widened(), ctx.masters[1]
    keep = how.keep_sum if ctx.norm.num == 1 else how.keep
    return keep(Made((bias,), bias), (grad,), make)


def summed_product(
    grad: torch.Tensor, y: torch.Tensor, *, dtype: torch.dtype, num: int = 1
) -> torch.Tensor:
    """Sum products over the rows of each device.

    Args:
        grad: [devices, ..., *shape].
        y: The same.
        dtype: What is computed in.
        num: Dims of the shape.

    Returns:
        [devices, *shape].
    """
    return summed(grad.to(dtype) * y.to(dtype), dtype=dtype, num=num)


def summed(grad: torch.Tensor, *, dtype: torch.dtype, num: int = 1) -> torch.Tensor:
    """Sum over the rows of each device.

    Args:
        grad: [devices, ..., *shape].
        dtype: What is computed in.
        num: Dims of the shape.

    Returns:
        [devices, *shape].
    """
    return grad.sum(list(range(1, grad.ndim - num)), dtype=dtype)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A lookup of ids in a table.

    Attributes:
        call: Gives the rows of a table [vocab, columns], for the ids.
        ids: [rows, ...].
        padding: Row that has no gradient, or -1.
        dtype: What the gradient is computed in, where it is not kept; None for the
            table's own.
        keeps: Whether it may be kept.
    """

    call: Callable[[torch.Tensor], torch.Tensor]
    ids: torch.Tensor
    padding: int
    dtype: torch.dtype | None
    keeps: bool


class LookupRows(torch.autograd.Function):
    """A lookup, the table's gradient in a dtype of its own."""

    @staticmethod
    def forward(
        ctx: Any, lookup: Lookup, table: torch.Tensor, master: Any, how: How | None
    ) -> torch.Tensor:
        """Look up.

        Args:
            ctx: What the backward pass needs.
            lookup: The lookup.
            table: Values of the table [vocab, columns].
            master: Who has the gradient.
            how: How it is kept.

        Returns:
            [rows, ..., columns].
        """
        ctx.lookup, ctx.table, ctx.master, ctx.how = lookup, table, master, how
        return lookup.call(table)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """The gradient of the table, if it is not kept in parts.

        Args:
            ctx: From the forward pass.
            *grads: One, of the rows.

        Returns:
            As many as the forward pass has arguments.
        """
        lookup, table, (grad,) = ctx.lookup, ctx.table, grads
        if lookup.keeps and _keep_table(ctx.how, ctx.master, lookup, table, grad):
            return None, None, None, None
        dtype = lookup.dtype or table.dtype
        table = known_as(table, table.detach().to(dtype)).requires_grad_()
        more = torch.is_grad_enabled()
        with torch.enable_grad():  # its value is not used, only what undoes it
            rows = lookup.call(table)
        (of_table,) = torch.autograd.grad(
            rows, table, grad.to(dtype), create_graph=more
        )
        return None, None, of_table, None


def known_as(known: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Let a table's values know how it is split: a lookup asks for that.

    Args:
        known: The table.
        tensor: Its values.

    Returns:
        The values.
    """
    annotation = get_sharding(known)
    if annotation is not None:
        remember(tensor, annotation.mesh, annotation.spec)
    return tensor


def _keep_table(
    how: How, master: torch.Tensor, lookup: Lookup, table: torch.Tensor, grad: Any
) -> bool:
    """Keep a table's gradient where it is made.

    Where rows and columns are exchanged, each device has its columns of everybody's
    ids and only copies are left to be added up: parts are those of copies. Elsewhere
    they are the devices', each of its own ids.
    """
    ids, into = lookup.ids, how.into
    if into is None or ids.shape != grad.shape[:-1]:
        return False
    known, pieces = get_sharding(master), _pieces(master)
    if known is None or len(master) % known.mesh.axis_size(pieces):
        return False
    exchange = axes = None
    if not pieces and not into.has(master):  # else a whole one is reduced anyway
        exchange = exchange_of(table, ids)
        if exchange is not None and exchange.gathers:
            exchange = None
        if exchange is not None:
            axes = _outer_axes(exchange)
            if not axes:  # nothing is left to be added up
                return False

    def make(ids: torch.Tensor, grad: torch.Tensor, *, dtype: torch.dtype) -> Any:
        if lookup.padding >= 0:
            grad = grad.masked_fill((ids == lookup.padding).unsqueeze(-1), 0)
        if exchange is not None:
            ids, grad = exchanged(ids, grad.to(how.dtype), exchange)
        if pieces:
            split = Annotation(known.mesh, (pieces, (*into.axes, *pieces)))
            return _by_piece(ids, grad.to(dtype), split, rows=len(master))
        return add_rows(ids, grad.to(dtype), master.shape[0])

    return how.keep(Made((master,), master), (ids, grad), make, axes=axes)


def _pieces(table: torch.Tensor) -> tuple[str, ...]:
    """Axes, other than the batch's, that split a table's rows as a vocabulary is.

    Tokens move then, and no table.
    """
    known = get_sharding(table)
    if known is None:
        return ()
    rows = entry_axes(known.spec[0])
    return tuple(a for a in rows if a not in known.mesh.data_axes)


def _by_piece(
    ids: torch.Tensor, grad: torch.Tensor, split: Annotation, *, rows: int
) -> torch.Tensor:
    """Add to a table of zeros by each device, for the ids that its piece has.

    Args:
        ids: [devices, ...].
        grad: [devices, ..., columns].
        split: Axes that split a table's rows, and those with these that split parts.
        rows: Of the table.

    Returns:
        [devices, rows, columns].
    """
    pieces, both = map(entry_axes, split.spec)
    num = split.mesh.axis_size(pieces)
    first = torch.arange(num, device=ids.device) * (rows // num)
    own = ids.unsqueeze(1) - first.view(-1, *[1] * (ids.ndim - 1))
    inside = (own >= 0) & (own < rows // num)
    own = torch.where(inside, own, 0).flatten(0, 1)
    values = torch.where(inside.unsqueeze(-1), grad.unsqueeze(1), 0).flatten(0, 1)
    seam.mark(values, split.mesh, (both, *[None] * (values.ndim - 1)))
    return add_rows(own, values, rows // num).reshape(len(ids), rows, -1)


def _outer_axes(exchange: Exchange) -> tuple[str, ...]:
    outer = entry_axes(exchange.columns[0])
    return tuple(a for a in outer if exchange.mesh.axis_size(a) > 1)
