"""torch's linear layers and products, with no dim flattened.

Each gives `NotImplemented` where torch's own flattens nothing, or refuses: it is then
called instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spmd._preserve.dot import Dims, dot


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    """`torch.nn.functional.linear` of three dims or more.

    Args:
        x: [..., in].
        weight: [out, in].
        bias: [out].

    Returns:
        [..., out].
    """
    if x.ndim < 3 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        return NotImplemented
    given = [x, weight] if bias is None else [x, weight, bias]
    if len({t.dtype for t in given}) > 1 or not _on_device(given):
        return NotImplemented
    if bias is not None and bias.shape not in (weight.shape[:1], (1,), ()):
        return NotImplemented
    product = dot(x, weight, Dims((x.ndim - 1,), (1,)))
    return product if bias is None else product + bias


def matmul(a: torch.Tensor, b: torch.Tensor) -> Any:
    """`torch.matmul` where a leading dim would be flattened.

    Args:
        a: [..., m, k], or [k].
        b: [..., k, n], or [k].

    Returns:
        [..., m, n], without `m` or `n` where an operand has one dim.
    """
    small, big = sorted((a.ndim, b.ndim))
    if small == 0 or big < 3 or (small, big) == (3, 3):
        return NotImplemented
    if a.dtype != b.dtype or not _on_device([a, b]):
        return NotImplemented
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        return NotImplemented
    if b.ndim <= 2:
        return dot(a, b, Dims((a.ndim - 1,), (0,)))
    if a.ndim == 1:
        return dot(a, b, Dims((0,), (b.ndim - 2,)))
    if a.ndim == 2:
        return dot(b, a, Dims((b.ndim - 2,), (1,))).mT
    return _batched(a, b)


def _batched(a: torch.Tensor, b: torch.Tensor) -> Any:
    """[..., m, k] by [..., k, n], whose leading dims are broadcast."""
    try:
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:  # torch's own says it better
        return NotImplemented
    a = a.expand(*lead, *a.shape[-2:])
    b = b.expand(*lead, *b.shape[-2:])
    batch = tuple(range(len(lead)))
    return dot(a, b, Dims((a.ndim - 1,), (b.ndim - 2,), batch, batch))


def _on_device(tensors: Sequence[torch.Tensor]) -> bool:
    return all(t.device.type == "xla" for t in tensors)
