"""Convolutions whose weights' gradients may stay where they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fsdpv2._made import Made
from fsdpv2._unreduced_rows import How, gradients
from spmd._torch_xla import seam

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Convolution(torch.autograd.Function):
    """A convolution without a bias."""

    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        x: torch.Tensor,
        weight: torch.Tensor,
        made: Made,
        how: How,
        *masters: torch.Tensor,
    ) -> torch.Tensor:
        """Convolve.

        Args:
            ctx: What the backward pass needs.
            call: The convolution of rows with a weight.
            x: [rows, in, *size].
            weight: Values of the weight [out, in / groups, *window].
            made: Of what that is made.
            how: How gradients of weights are made.
            *masters: Who has them.

        Returns:
            [rows, out, *size].
        """
        ctx.save_for_backward(x, weight)
        ctx.call, ctx.made, ctx.how = call, made, how
        return call(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of `x`, and of those weights that are not kept in parts.

        Args:
            ctx: From the forward pass.
            *grads: One, of the result.

        Returns:
            As many as the forward pass has arguments.
        """
        x, weight = (t.detach() for t in ctx.saved_tensors)
        (grad,) = grads
        call: Call = ctx.call
        of_x = None
        if ctx.needs_input_grad[1]:
            (of_x,) = gradients(call, (x, weight), (x,), grad)

        def parts(
            grad: torch.Tensor, x: torch.Tensor, *, dtype: torch.dtype
        ) -> torch.Tensor:
            return by_device(call, grad, x, weight, dtype=dtype)

        def whole(
            grad: torch.Tensor, x: torch.Tensor, *, dtype: torch.dtype
        ) -> torch.Tensor:
            return gradients(call, (x, weight), (weight,), grad)[0].to(dtype)

        wanted = ctx.needs_input_grad[5:]
        of_weights = ctx.how.gradients(ctx.made, wanted, (grad, x), parts, whole)
        return None, of_x, None, None, None, *of_weights


def by_device(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The gradient of a weight, of the rows of each device.

    Of windows next to each other, as patches of an image are, it is a product over rows
    and windows.

    Args:
        call: The convolution.
        grad: [devices, rows, out, *windows].
        x: [devices, rows, in, *size].
        weight: [out, in / groups, *window].
        dtype: What a product is computed in.

    Returns:
        [devices, out, in / groups, *window].
    """
    windows, window, size = grad.shape[3:], weight.shape[2:], x.shape[3:]
    whole = [n * w for n, w in zip(windows, window, strict=True)]
    if x.shape[2] != weight.shape[1] or list(size) != whole:
        return _vmapped(call, grad, x, weight).to(dtype)
    split = [n for pair in zip(windows, window, strict=True) for n in pair]
    patches = x.reshape(*x.shape[:3], *split)
    num = len(window)
    over_grad = [1, *range(3, 3 + num)]
    over_x = [1, *range(3, 3 + 2 * num, 2)]
    return seam.dot_general(grad, patches, over_grad, over_x, [0], [0], dtype=dtype)


def _vmapped(
    call: Call, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    def one(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        vjp: Any = torch.func.vjp(lambda w: call(x, w), weight)[1]
        return vjp(grad)[0]

    return torch.func.vmap(one)(grad, x)
