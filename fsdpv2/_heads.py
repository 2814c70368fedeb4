"""Keep the rows of a batch where they are below a layer that has no sequence.

The head of a classifier multiplies [rows, in], and its weight may be larger than that.
XLA splits a product as the larger operand is split: the gradient of what goes in would
be split over columns as the weight, and so would all gradients below, for which rows
are gathered then.

    gradient [32, 8], split over rows; weight [8, 64], split over columns
    their product [32, 64]: said to be split over rows
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from fsdpv2._weights import without
from spmd import Mesh
from spmd._marking.mark import get_sharding
from spmd._marking.planning import GRADIENT, noted
from spmd._meshes.spec import Spec
from spmd._torch_xla import seam


@contextmanager
def rows_stay(mesh: Mesh, axes: tuple[str, ...], *, rows: int | None) -> Iterator[None]:
    """Split gradients of what enters linear layers over rows.

    Only of [rows, in], and columns as the weight's, but for axes of the batch.

    Args:
        mesh: The mesh.
        axes: Axes that split the batch.
        rows: Rows of the batch; None where none is known.

    Yields:
        Nothing.
    """
    if not rows or rows % mesh.axis_size(axes) or not torch.is_grad_enabled():
        yield
        return

    def after(module: nn.Module, args: tuple[Any, ...], _: Any) -> None:
        if not isinstance(module, nn.Linear) or len(args) != 1:
            return
        (x,) = args
        known = get_sharding(module.weight)
        if known is None or known.mesh != mesh or not isinstance(x, torch.Tensor):
            return
        if x.ndim == 2 and len(x) == rows and x.grad_fn is not None:
            columns = without(known.spec[1:], axes)
            _mark_gradient(x, mesh, (axes, *columns))

    handle = register_module_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


def _mark_gradient(x: torch.Tensor, mesh: Mesh, spec: Spec) -> None:
    def mark(grad: torch.Tensor) -> torch.Tensor:
        if grad.device.type != "xla":
            return grad
        grad = grad.clone()
        with noted(GRADIENT, grad, mesh, spec):
            seam.mark(grad, mesh, spec)
        return grad

    x.register_hook(mark)
