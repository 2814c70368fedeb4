"""Uses of experts' weights, whose gradients may stay where they are made.

Values, and gradients of what goes in, are those of the functions that are taken:
`spmd._experts.product.product` and `plus`, and the lookup of experts by their number,
as transformers' ``batched_mm`` has it. Tokens of the first two are [rows, ...], an
entry for each device of the axes that split them, so a weight's gradient in parts is
the product that it is anyway, with a dim of rows.

    tokens [rows, columns, tokens, in], gradient [rows, columns, tokens, expert, out]
    parts:  [rows, expert, out, in]   each entry on its devices
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from fsdpv2._how import How
from fsdpv2._keeper import Keeper
from fsdpv2._made import Made
from fsdpv2._twice import twice
from fsdpv2._unreduced_rows import summed
from spmd._experts.product import Axes, plus, product, stacked
from spmd._marking.mark import get_sharding
from spmd._marking.planning import GRADIENT, noted
from spmd._preserve.dot import Dims, dot, gradient_of_a, gradient_of_b
from spmd._vocab.rows import add_rows

EXPERTS = product, plus
"""Functions that `Experts.call` knows to do."""


class Experts:
    """Calls functions with weights of experts.

    Args:
        masters: The tensor that gets the gradient, by the one that is computed with.
        dtype: What gradients of linear layers are made in; None for what is computed
            in, as those of experts are.
        into: Where gradients are added up, or None.
    """

    def __init__(
        self,
        masters: Mapping[torch.Tensor, torch.Tensor],
        dtype: torch.dtype | None,
        into: Keeper | None,
    ) -> None:
        self._used = list(masters)  # so that no other gets the id of one
        self._masters = {id(used): master for used, master in masters.items()}
        self._dtype = dtype
        self._into = into

    def call(
        self,
        func: Any,
        x: torch.Tensor,
        given: Sequence[torch.Tensor],
        *dims: Dims,
        axes: Axes | None,
    ) -> Any:
        """Call one of `EXPERTS`.

        Args:
            func: Which.
            x: As for it.
            given: Weights or biases.
            *dims: As for it.
            axes: As for it.

        Returns:
            What the function returns.
        """
        into = self._into
        # A bias by its share of each token: as the weight of a linear layer.
        linear = func is product and given[0].ndim == 2
        dtype = self._dtype if linear else None
        if (into is None and dtype is None) or not self._fits(x, given):
            return func(x, given, *dims, axes=axes)
        owners = [self._masters[id(w)] for w in given]
        made = [Made((m,), w) for m, w in zip(owners, given, strict=True)]

        def call(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
            return func(x, weights, *dims, axes=axes)

        held = _Held(How(dtype or x.dtype, into), axes, call, made)
        values = [w.detach() for w in given]
        if func is plus:
            return _Plus.apply(x, values, held, *owners)
        return _Product.apply(x, values, *dims, held, *owners)

    def look_up(self, table: torch.Tensor, ids: torch.Tensor) -> Any:
        """Entries of a weight, as far as `are_looked_up` says so.

        Args:
            table: [expert, ...].
            ids: [tokens].

        Returns:
            [tokens, ...].
        """
        how = How(table.dtype, self._into)
        made = Made((self._masters[id(table)],), table)
        return _Lookup.apply(table.detach(), ids, how, made, *made.masters)

    def _fits(self, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> bool:
        if torch.is_autocast_enabled("xla"):  # torch is to choose the dtype
            return False
        known = all(id(w) in self._masters and w.dtype == x.dtype for w in weights)
        return known and x.device.type == "xla" and x.ndim > 1

    def are_looked_up(self, table: torch.Tensor, ids: Any) -> bool:
        """Whether experts are, by ids [tokens].

        They have matrices; biases [expert, out] are known by them. Other tables, as of
        the distances in a window, may be looked up by what is no batch's.

        Args:
            table: What entries are asked of.
            ids: For which.
        """
        if id(table) not in self._masters or not isinstance(ids, torch.Tensor):
            return False
        if ids.device != table.device or ids.ndim != 1:
            return False
        if ids.dtype not in (torch.int64, torch.int32):
            return False
        if table.ndim not in (2, 3) or table.device.type != "xla":
            return False
        return any(t.ndim == 3 and len(t) == len(table) for t in self._used)


@dataclass(frozen=True, slots=True)
class _Held:
    """How the gradients are made of weights that are used as one.

    Attributes:
        how: What they are reduced in, and where they are added up.
        axes: Axes that split rows; None where nobody says.
        call: Gives the result, for rows and weights.
        made: The weights.
    """

    how: How
    axes: Axes | None
    call: Callable[..., torch.Tensor]
    made: Sequence[Made]

    def gradients(
        self,
        masters: Sequence[torch.Tensor],
        wanted: Sequence[bool],
        values: Sequence[torch.Tensor],
        *,
        parts: Callable[..., torch.Tensor],
        whole: Callable[[], torch.Tensor],
    ) -> list[torch.Tensor | None]:
        """Keep gradients in parts, and give those for which that may not be.

        Args:
            masters: Who has them.
            wanted: Whose are asked for.
            values: What they are made of, [rows, ...].
            parts: Makes parts of all in a dtype, [devices, expert, weights, ...].
            whole: Makes all of them, [expert, weights, ...].

        Returns:
            None for those that are kept.
        """
        in_parts, as_one = functools.cache(parts), functools.cache(whole)

        def one(both: torch.Tensor, dim: int, i: int) -> torch.Tensor:
            return both if len(masters) == 1 else both.select(dim, i)

        def keep(i: int) -> bool:
            def make(*_: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
                return one(in_parts(dtype), 2, i)

            made = self.made[i]
            if self.axes is None:  # a token in each row, or a sequence
                return self.how.keep(made, [v.flatten(1) for v in values], make)
            if not self.axes:  # devices have the same rows
                return False
            # An entry for each device, which need not be the batch's rows.
            return self.how.keep(made, (), make, axes=self.axes)

        with _named(values[0], masters[0]):
            left = [w and not keep(i) for i, w in enumerate(wanted)]
            return [one(as_one(), 1, i) if w else None for i, w in enumerate(left)]

    def by_device(self, value: torch.Tensor) -> torch.Tensor:
        """[rows, ...] as [devices, rows / devices, ...]."""
        if self.axes is not None:
            return value.unsqueeze(1)
        assert self.how.into is not None
        return self.how.into.split(value)


def _named(grad: torch.Tensor, master: torch.Tensor) -> AbstractContextManager[Any]:
    """Tell a trace where products belong that no dispatch mode sees."""
    known = get_sharding(master)
    if known is None:
        return nullcontext()
    return noted(GRADIENT, grad, known.mesh, known.spec)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weights: Sequence[torch.Tensor],
        dims: Dims,
        held: _Held,
        *masters: torch.Tensor,
    ) -> torch.Tensor:
        weight = stacked(weights)
        ctx.save_for_backward(x, weight)
        ctx.dims, ctx.held, ctx.masters = dims, held, masters
        return dot(x, weight, dims)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        dims, held = ctx.dims, ctx.held
        (grad,) = grads
        if torch.is_grad_enabled():
            (of_x,), of_weights = twice(held.call, (x,), held.made, grad)
            return of_x, None, None, None, *of_weights
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = gradient_of_a(grad, x, weight, dims)
        num = len(dims.batch_a)
        by_row = grad.movedim(num, 0)

        def parts(dtype: torch.dtype) -> torch.Tensor:
            a, b = held.by_device(x), held.by_device(by_row).movedim(1, 1 + num)
            return gradient_of_b(
                b, a, _by_device(dims), ndim=weight.ndim + 1, dtype=dtype
            )

        def whole() -> torch.Tensor:
            known = get_sharding(ctx.masters[0]) if len(ctx.masters) == 1 else None
            return gradient_of_b(
                grad, x, dims, ndim=weight.ndim, known=known, dtype=held.how.dtype
            )

        of_weights = held.gradients(
            ctx.masters,
            ctx.needs_input_grad[4:],
            (by_row, x),
            parts=parts,
            whole=whole,
        )
        return of_x, None, None, None, *of_weights


def _by_device(dims: Dims) -> Dims:
    """The same with a dim of devices in front of both operands."""

    def behind(given: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(d + 1 for d in given)

    return Dims(
        behind(dims.contract_a),
        behind(dims.contract_b),
        (0, *behind(dims.batch_a)),
        (0, *behind(dims.batch_b)),
    )


class _Plus(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        biases: Sequence[torch.Tensor],
        held: _Held,
        *masters: torch.Tensor,
    ) -> torch.Tensor:
        bias = stacked(biases)
        ctx.num, ctx.held, ctx.masters = bias.ndim, held, masters
        return x + bias

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        num, held = ctx.num, ctx.held
        if torch.is_grad_enabled():

            def call(*biases: torch.Tensor) -> torch.Tensor:
                return stacked(biases).expand(grad.shape)

            return grad, None, None, *twice(call, (), held.made, grad)[1]

        def parts(dtype: torch.dtype) -> torch.Tensor:
            return summed(held.by_device(grad), dtype=dtype, num=num)

        def whole() -> torch.Tensor:
            return grad.sum(list(range(grad.ndim - num)), dtype=held.how.dtype)

        of_biases = held.gradients(
            ctx.masters, ctx.needs_input_grad[3:], (grad,), parts=parts, whole=whole
        )
        return grad, None, None, *of_biases


class _Lookup(torch.autograd.Function):
    """[tokens, ...] of [entries, ...], by ids [tokens]."""

    @staticmethod
    def forward(
        ctx: Any,
        table: torch.Tensor,
        ids: torch.Tensor,
        how: How,
        made: Made,
        *_: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.how, ctx.made = table.shape, how, made
        return table[ids]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (ids,) = ctx.saved_tensors
        (grad,) = grads
        num, made = ctx.shape[0], ctx.made
        if torch.is_grad_enabled():
            _, of_table = twice(lambda t: t[ids], (), (made,), grad)
            return None, None, None, None, *of_table

        def parts(
            ids: torch.Tensor, grad: torch.Tensor, *, dtype: torch.dtype
        ) -> torch.Tensor:
            """[devices, tokens, 1] and [devices, tokens, columns]."""
            ids = torch.where(ids < 0, ids + num, ids).squeeze(-1)
            table = add_rows(ids, grad.to(dtype), num)
            return table.unflatten(-1, ctx.shape[1:])

        with _named(grad, made.masters[0]):
            values = ids.unsqueeze(1), grad.flatten(1)
            if ctx.how.keep(made, values, parts):
                return None, None, None, None, None
            empty = grad.new_zeros(ctx.shape)
            return (
                None,
                None,
                None,
                None,
                empty.index_put((ids,), grad, accumulate=True),
            )
