"""Convolutions whose weights' gradients may stay where they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fsdpv2._how import How
from fsdpv2._made import Made
from fsdpv2._twice import twice
from fsdpv2._unreduced_rows import gradients
from spmd._torch_xla import seam


@dataclass(frozen=True, slots=True)
class Windows:
    """A convolution without a bias.

    Attributes:
        func: One of torch's.
        rest: Its arguments after the bias: stride, padding, dilation, groups.
        more: The same by name.
    """

    func: Callable[..., torch.Tensor]
    rest: tuple[Any, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Convolve rows with a weight."""
        return self.func(x, weight, None, *self.rest, **self.more)

    def are_adjacent(self, window: Sequence[int]) -> bool:
        """Whether they are next to each other, and nothing is around them.

        Args:
            window: Size of one.
        """
        names = "stride", "padding", "dilation"
        given = {**dict(zip(names, self.rest, strict=False)), **self.more}
        num = len(window)

        def each(name: str, default: int) -> list[Any]:
            value = given.get(name, default)
            value = [value] if isinstance(value, int | str) else list(value)
            return value * num if len(value) == 1 else value

        plain = each("padding", 0) in ([0] * num, ["valid"] * num)
        plain = plain and each("dilation", 1) == [1] * num
        return plain and each("stride", 1) == list(window)


class Convolution(torch.autograd.Function):
    """A convolution without a bias."""

    @staticmethod
    def forward(
        ctx: Any,
        call: Windows,
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
        (grad,) = grads
        if torch.is_grad_enabled():
            x, _ = ctx.saved_tensors
            (of_x,), of_weights = twice(ctx.call, (x,), (ctx.made,), grad)
            return None, of_x, None, None, None, *of_weights
        x, weight = (t.detach() for t in ctx.saved_tensors)
        made: Made = ctx.made
        wanted = [ctx.needs_input_grad[1], any(ctx.needs_input_grad[5:])]

        def make(
            grad: torch.Tensor, x: torch.Tensor, *, dtype: torch.dtype
        ) -> torch.Tensor:
            return by_device(ctx.call, grad, x, weight, dtype=dtype)

        # GSPMD may add up a grouped convolution twice of what it split its own way.
        if wanted[1] and ctx.how.keep(made, (grad, x), make, columns=[(), ()]):
            wanted[1] = False
        asked = [t for t, w in zip((x, weight), wanted, strict=True) if w]
        found = iter(gradients(ctx.call, (x, weight), asked, grad))
        of_x = next(found) if wanted[0] else None
        of_weights = (None,) * len(made.masters)
        if wanted[1]:
            of_weights = tuple(made.gradients(next(found)))
        return None, of_x, None, None, None, *of_weights


def by_device(
    call: Windows,
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
    adjacent = call.are_adjacent(window) and list(size) == whole
    if x.shape[2] != weight.shape[1] or not adjacent:
        return _vmapped(call, grad, x, weight).to(dtype)
    split = [n for pair in zip(windows, window, strict=True) for n in pair]
    patches = x.reshape(*x.shape[:3], *split)
    num = len(window)
    over_grad = [1, *range(3, 3 + num)]
    over_x = [1, *range(3, 3 + 2 * num, 2)]
    return seam.dot_general(grad, patches, over_grad, over_x, [0], [0], dtype=dtype)


def _vmapped(
    call: Windows, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    def one(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        vjp: Any = torch.func.vjp(lambda w: call(x, w), weight)[1]
        return vjp(grad)[0]

    return torch.func.vmap(one)(grad, x)
