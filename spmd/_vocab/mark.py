"""Split what a lookup computes on its way, as the devices should hold it."""

from __future__ import annotations

import torch

from spmd._marking.planning import GRADIENT, noted
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec
from spmd._torch_xla import seam


def marked(tensor: torch.Tensor, mesh: Mesh, spec: Spec) -> torch.Tensor:
    """Split a value that is no one's but ours: a program does not list it.

    Args:
        tensor: A traced value.
        mesh: The mesh.
        spec: An entry for each dim.

    Returns:
        The tensor.
    """
    with noted(GRADIENT, tensor, mesh, spec):
        seam.mark(tensor, mesh, spec)
    return tensor
