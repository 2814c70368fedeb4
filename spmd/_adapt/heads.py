"""Repeat the weights of key and value heads, where an axis has more devices than heads.

8 query heads share 2 key heads, and 4 devices have 2 query heads each: each of them
needs one key head, and two need the same. Computed by every device, keys are split into
what each needs, and their gradient is gathered and added up, as large as activations.
Computed from repeated weights, each device makes its own, and what is added up is the
gradient of the weights.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from spmd._fused.fused import FusedLinear

KEYS_AND_VALUES = frozenset(("k_proj", "v_proj"))
"""Names of layers of their own that make keys or values."""
_PARTS = ("k", "v")


def repeatable(attention: nn.Module) -> bool:
    """Whether `repeat_heads` knows an attention.

    Args:
        attention: Of a model of transformers, before or after weights are taken apart.
    """
    if type(attention).__name__ == "FalconAttention":
        new = getattr(attention, "new_decoder_architecture", False)
        return bool(getattr(attention, "multi_query", False)) and not new
    sizes = (getattr(attention, n, None) for n in ("head_dim", "num_key_value_groups"))
    if not all(isinstance(size, int) for size in sizes):
        return False
    apart = KEYS_AND_VALUES.issubset(attention._modules)
    return apart or isinstance(getattr(attention, "num_key_value_heads", None), int)


def repeat_heads(attention: Any, num_heads: int, *, name: str) -> None:
    """Have attention make more key and value heads than it has weights for, in place.

    Args:
        attention: One that is `repeatable`.
        num_heads: Key and value heads to make: a multiple of those that it has, and a
            divisor of its query heads.
        name: What to call it in messages.

    Raises:
        ValueError: Another attention, or a number of heads that does not fit.
    """
    layers = _layers(attention)
    if not layers or not repeatable(attention):
        raise ValueError(
            f"{name}: {type(attention).__name__} has no key and value heads that are "
            f"known here, to be repeated"
        )
    size = attention.head_dim
    held = {layer.out_features // size for layer in layers}
    if any(num_heads % num for num in held):
        raise ValueError(
            f"{name}: {', '.join(map(str, sorted(held)))} key and value heads cannot "
            f"be repeated to {num_heads}; a multiple is needed"
        )
    (num,) = held
    is_falcon = type(attention).__name__ == "FalconAttention"
    groups = attention.num_heads if is_falcon else attention.num_key_value_groups * num
    if groups % num_heads:
        raise ValueError(
            f"{name}: {groups} query heads do not divide over {num_heads} key and "
            f"value heads"
        )
    for layer in layers:
        layer.forward = MethodType(_repeated(num, num_heads), layer)
    if is_falcon:
        attention.num_kv_heads = attention.num_heads
        attention._split_heads = MethodType(_falcon_heads(num_heads), attention)
        return
    attention.num_key_value_groups = groups // num_heads
    if hasattr(attention, "num_key_value_heads"):  # by which it takes fused ones apart
        attention.num_key_value_heads = num_heads


def _layers(attention: nn.Module) -> list[Any]:
    """The linear layers that make keys and values."""
    found: list[Any] = []
    for key, child in attention._modules.items():
        if isinstance(child, FusedLinear):
            found += [child._modules[part] for part in _PARTS if part in child._modules]
        elif key in KEYS_AND_VALUES:
            found.append(child)
    return found


def _repeated(num: int, num_heads: int) -> Any:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        bias: Any = self.bias
        if bias is not None:
            bias = _Repeat.apply(bias, num, num_heads)
        weight: Any = _Repeat.apply(self.weight, num, num_heads)
        return functional.linear(x, weight, bias)

    return forward


class _Repeat(torch.autograd.Function):
    """Rows of heads [num * size, ...] as [num_heads * size, ...].

    2 heads to 4 are 0, 0, 1, 1. Both ways are element by element, and the gradient is
    one sum over all heads: that of an expanded weight is a sum over some devices, and a
    gather from the others.
    """

    @staticmethod
    def forward(weight: torch.Tensor, num: int, num_heads: int) -> torch.Tensor:
        rows = weight.reshape(num, -1, *weight.shape[1:])
        which = _which(weight, rows.ndim, num, num_heads)
        chosen = rows[0].expand(num_heads, *rows.shape[1:])
        for i in range(1, num):
            chosen = torch.where(which == i, rows[i], chosen)
        return chosen.reshape(-1, *weight.shape[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.num, ctx.num_heads = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (grad,) = grads
        rows = grad.reshape(ctx.num_heads, 1, -1, *grad.shape[1:])
        which = _which(grad, rows.ndim, ctx.num, ctx.num_heads)
        own = torch.arange(ctx.num, device=grad.device)
        own = own.reshape(-1, *(1 for _ in rows.shape[2:]))
        of_rows = torch.where(which == own, rows, 0.0).sum(0)
        return of_rows.reshape(-1, *grad.shape[1:]), None, None


def _which(like: torch.Tensor, ndim: int, num: int, num_heads: int) -> torch.Tensor:
    """The head that each is made from: [num_heads, 1, ...]."""
    made = torch.arange(num_heads, device=like.device) // (num_heads // num)
    return made.reshape(-1, *(1 for _ in range(ndim - 1)))


def _falcon_heads(num_heads: int) -> Any:
    def split_heads(self: Any, fused_qkv: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[batch, seq, heads, head_dim] of queries, and as many of keys and values."""
        size = self.head_dim
        sizes = [self.num_heads * size, num_heads * size, num_heads * size]
        parts = torch.split(fused_qkv, sizes, dim=-1)
        query, *shared = (part.unflatten(-1, (-1, size)) for part in parts)
        times = self.num_heads // num_heads
        shared = [
            part.unsqueeze(3).expand(*part.shape[:3], times, size).flatten(2, 3)
            for part in shared
        ]
        return query, *shared

    return split_heads
