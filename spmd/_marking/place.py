"""Say how a value inside a step is split, and how its gradient is."""

from __future__ import annotations

from typing import Any

import torch

from spmd._marking.planning import GRADIENT, noted
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec


def placed(
    tensor: torch.Tensor, mesh: Mesh, spec: Spec, *, grad: Spec | None = None
) -> torch.Tensor:
    """A value that is split by a spec, and its gradient by another.

    The tensor itself stays as it is, so that from one value to the next a spec can
    change: [tokens] that are split in, and whole out, are gathered here, and their
    gradient is scattered.

    Args:
        tensor: On the XLA device; on others it is given back.
        mesh: The mesh.
        spec: A normalised spec.
        grad: That of the gradient; None for the same.

    Returns:
        A tensor of the same values. A program does not list it.
    """
    if tensor.device.type != "xla":
        return tensor
    grad = spec if grad is None else grad
    return _Placed.apply(tensor, mesh, spec, grad)  # pyright: ignore[reportReturnType]


class _Placed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, mesh: Mesh, spec: Spec, grad: Spec
    ) -> torch.Tensor:
        ctx.where = mesh, spec, grad
        return _marked(tensor, mesh, spec)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        mesh, spec, grad = ctx.where
        return placed(grads[0], mesh, grad, grad=spec), None, None, None


def _marked(tensor: torch.Tensor, mesh: Mesh, spec: Spec) -> torch.Tensor:
    from spmd._torch_xla import seam

    tensor = tensor.clone()
    with noted(GRADIENT, tensor, mesh, spec):  # as what is no one's but ours
        seam.mark(tensor, mesh, spec)
    return tensor
