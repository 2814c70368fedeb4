"""`planning`: annotate for a mesh that is not there, while a step is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec

OnMark: TypeAlias = Callable[[str, tuple[int, ...], Mesh, Spec], object]
GRADIENT = "gradient"
"""Label of every gradient that is marked."""

# A module variable rather than a context variable: gradients may be marked by threads
# of autograd.
_on_mark: OnMark | None = None


@contextmanager
def planning(on_mark: OnMark) -> Iterator[None]:
    """Accept meshes of any size, and tensors that hold no data, for a trace.

    Args:
        on_mark: Called with label, shape, mesh and spec of each value or gradient that
            is marked; what it returns is held until that is done.

    Yields:
        Nothing.
    """
    global _on_mark
    before = _on_mark
    _on_mark = on_mark
    try:
        yield
    finally:
        _on_mark = before


def is_planning() -> bool:
    """Whether a step is traced for a mesh that need not be there."""
    return _on_mark is not None


@contextmanager
def noted(label: str, tensor: torch.Tensor, mesh: Mesh, spec: Spec) -> Iterator[None]:
    """Tell a trace that is running what is marked inside this context.

    Args:
        label: What to call the tensor.
        tensor: The tensor.
        mesh: The mesh.
        spec: A normalised spec.

    Yields:
        Nothing.
    """
    held = None
    if _on_mark is not None:
        held = _on_mark(label, tuple(tensor.shape), mesh, spec)
    try:
        yield
    finally:
        del held
