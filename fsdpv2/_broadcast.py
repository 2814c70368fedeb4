"""Sums and products with weights that are the same for every row of the batch.

The gradient of such a weight is a sum over rows, which each device may leave at that of
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fsdpv2._how import How
from fsdpv2._made import Made
from fsdpv2._twice import twice


def is_broadcast(weight: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether each of several rows meets the same weight.

    Args:
        weight: [..., width].
        x: [rows, ..., width], or with ones for some of its other dims.

    Returns:
        No where the weight has rows of its own.
    """
    if weight.ndim > x.ndim or (weight.ndim == x.ndim and weight.shape[0] != 1):
        return False
    sizes = zip(reversed(weight.shape), reversed(x.shape), strict=False)
    return all(a == b or 1 in (a, b) for a, b in sizes)


def summed_to(
    values: torch.Tensor, shape: Sequence[int], *, dtype: torch.dtype, keep: int = 1
) -> torch.Tensor:
    """Sum over what a weight is the same for, on each device.

    Args:
        values: [devices, rows, ...].
        shape: Of the weight; see `is_broadcast`.
        dtype: What is computed in.
        keep: Dims in front that stay: none for a sum over all devices.

    Returns:
        [devices, *shape].
    """
    first = values.ndim - len(shape)
    same = (first + i for i, n in enumerate(shape) if n != values.shape[first + i])
    over = [*range(keep, first), *same]
    total = values.sum(over, dtype=dtype) if over else values.to(dtype)
    return total.reshape(*values.shape[:keep], *shape)


class Sum(torch.autograd.Function):
    """Rows plus a weight."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        made: Made,
        how: How,
        *masters: torch.Tensor,
    ) -> torch.Tensor:
        """Add.

        Args:
            ctx: What the backward pass needs.
            x: [rows, ...].
            weight: Values of the weight.
            made: Of what that is made.
            how: How gradients of weights are made.
            *masters: Who has them.

        Returns:
            Shape of `x`.
        """
        ctx.shape, ctx.made, ctx.how = weight.shape, made, how
        ctx.of_x = x.shape
        return x + weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of `x`, and of those weights that are not kept in parts.

        Args:
            ctx: From the forward pass.
            *grads: One, of the result.

        Returns:
            As many as the forward pass has arguments.
        """
        (grad,) = grads
        of_x = grad.sum_to_size(ctx.of_x) if ctx.needs_input_grad[0] else None
        if torch.is_grad_enabled():
            return of_x, None, None, None, *_copied(ctx.made, grad)
        return of_x, None, None, None, *_of_rows(ctx, 4, (grad,))


class Product(torch.autograd.Function):
    """Rows times a weight, as norms end that a model has of its own."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        made: Made,
        how: How,
        *masters: torch.Tensor,
    ) -> torch.Tensor:
        """Multiply; see `Sum.forward`."""
        ctx.save_for_backward(x, weight)
        ctx.shape, ctx.made, ctx.how = weight.shape, made, how
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """See `Sum.backward`."""
        x, weight = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            (of_x,), of_weights = twice(torch.mul, (x,), (ctx.made,), grad)
            return of_x, None, None, None, *of_weights
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = (grad * weight).sum_to_size(x.shape)
        return of_x, None, None, None, *_of_rows(ctx, 4, (grad, x))


class Copies(torch.autograd.Function):
    """A weight for each row, as a token of its own that goes before all others."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        sizes: Sequence[int],
        made: Made,
        how: How,
        *masters: torch.Tensor,
    ) -> torch.Tensor:
        """Repeat, as `Tensor.expand` does; see `Sum.forward`."""
        ctx.shape, ctx.made, ctx.how = weight.shape, made, how
        return weight.expand(*sizes).clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """See `Sum.backward`."""
        if torch.is_grad_enabled():
            return None, None, None, None, *_copied(ctx.made, grads[0])
        return None, None, None, None, *_of_rows(ctx, 4, grads)


def _copied(made: Made, grad: torch.Tensor) -> list[torch.Tensor | None]:
    """Gradients of what a weight is made of that was repeated, with a history."""
    return twice(lambda w: w.expand(grad.shape), (), (made,), grad)[1]


def _of_rows(
    ctx: Any, first: int, factors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of weights: sums over rows of the product of some factors."""

    def make(*factors: torch.Tensor, dtype: torch.dtype, keep: int = 1) -> torch.Tensor:
        value = factors[0].to(dtype)
        for factor in factors[1:]:
            value = value * factor.to(dtype)
        return summed_to(value, ctx.shape, dtype=dtype, keep=keep)

    keep = ctx.how.keep_sum if len(ctx.shape) == 1 else ctx.how.keep
    if not any(ctx.needs_input_grad[first:]) or keep(ctx.made, factors, make):
        return (None,) * len(ctx.made.masters)
    return tuple(ctx.made.gradients(make(*factors, dtype=ctx.how.dtype, keep=0)))
