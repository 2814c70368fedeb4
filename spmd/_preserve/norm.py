"""torch's layer norm, with no dim flattened or exchanged.

torch_xla's is a batch norm of [1, rows, columns].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    """`torch.nn.functional.layer_norm` with a leading dim or more.

    Computed in float32 at least, like torch's.

    Args:
        x: [..., *normalized_shape].
        normalized_shape: Sizes of the dims over which is normalised.
        weight: [*normalized_shape].
        bias: [*normalized_shape].
        eps: Is added to the variance.
        cudnn_enable: Has no meaning here.

    Returns:
        Shape and dtype of `x`; `NotImplemented` where torch's own flattens nothing, or
        refuses.
    """
    num, shape = len(normalized_shape), torch.Size(normalized_shape)
    given = [t for t in (weight, bias) if t is not None]
    if num == 0 or x.ndim - num < 1 or x.shape[-num:] != shape:
        return NotImplemented
    if any(t.shape != shape for t in given):
        return NotImplemented
    if not all(t.is_floating_point() and t.device == x.device for t in (x, *given)):
        return NotImplemented
    return _LayerNorm.apply(x, weight, bias, num, eps)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        num: int,
        eps: float,
    ) -> torch.Tensor:
        y, _ = _normalised(x, num, eps)
        if weight is not None:
            y = y * weight
        if bias is not None:
            y = y + bias
        return y.to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias, ctx.num, ctx.eps = inputs
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        # Again, rather than kept: XLA finds that it is the same.
        y, scale = _normalised(x, ctx.num, ctx.eps)
        grad = grads[0].to(y.dtype)
        lead = tuple(range(x.ndim - ctx.num))
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[1]:
            of_weight = (grad * y).sum(lead).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = grad.sum(lead).to(ctx.bias_dtype)
        if ctx.needs_input_grad[0]:
            if weight is not None:
                grad = grad * weight
            last = tuple(range(x.ndim - ctx.num, x.ndim))
            along = (grad * y).mean(last, keepdim=True)
            of_x = (grad - grad.mean(last, keepdim=True) - y * along) * scale
            of_x = of_x.to(x.dtype)
        return of_x, of_weight, of_bias, None, None


def _normalised(
    x: torch.Tensor, num: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What has mean 0 and variance 1 over the last dims, and one by the deviation."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    last = tuple(range(x.ndim - num, x.ndim))
    centred = wide - wide.mean(last, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(last, keepdim=True) + eps)
    return centred * scale, scale
