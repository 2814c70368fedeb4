"""The tensors a module computes with: its own, gathered, in another dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spmd._marking.mark import get_sharding, remember
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, entry_axes
from spmd._torch_xla import seam


def gathered(tensor: torch.Tensor, *, axis: str) -> torch.Tensor:
    """A parameter as a whole, as far as one axis splits it.

    The compiler gathers where a value is needed, and which of the two operands of a
    product it moves is its choice. Here it is said that the weight moves.

    Args:
        tensor: A parameter, or a value computed from one.
        axis: The axis that shards parameters.

    Returns:
        A value with the same gradient, annotated without the axis. The tensor itself if
        the axis does not split it.
    """
    known = get_sharding(tensor)
    if known is None or tensor.device.type != "xla":
        return tensor
    spec = without(known.spec, (axis,))
    if spec == known.spec:
        return tensor
    value: Any = _Gather.apply(tensor, known.mesh, spec)
    return remember(value, known.mesh, spec)  # experts and vocabularies look at it


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A parameter in another dtype, cast piece by piece where the pieces are.

    Args:
        tensor: A parameter; what is no floating-point number stays.
        dtype: The dtype.

    Returns:
        A value with the same annotation.
    """
    if not tensor.is_floating_point() or tensor.dtype == dtype:
        return tensor
    value = tensor.to(dtype)
    known = get_sharding(tensor)
    if known is not None and tensor.device.type == "xla":
        seam.mark(value, known.mesh, known.spec)
        remember(value, known.mesh, known.spec)
    return value


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, mesh: Mesh, spec: Spec) -> torch.Tensor:
        whole = tensor.detach().clone()
        seam.optimization_barrier([whole])  # makes it a value: data would move
        seam.mark(whole, mesh, spec)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return grads[0], None, None


def without(spec: Spec, axes: Sequence[str]) -> Spec:
    """A spec with axes taken out.

    Args:
        spec: Any spec.
        axes: The axes.

    Returns:
        A spec of as many dims.

    Example:
        >>> without((("replica", "fsdp"), "tensor", "fsdp"), ("fsdp",))
        ('replica', 'tensor', None)
    """
    found: list[Any] = []
    for entry in spec:
        left = tuple(a for a in entry_axes(entry) if a not in axes)
        found.append(left if len(left) > 1 else (left[0] if left else None))
    return tuple(found)
