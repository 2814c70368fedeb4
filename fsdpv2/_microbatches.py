"""Split a batch into several that run one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from spmd import Annotation, Mesh
from spmd._mark import get_sharding, mark_gradient, mark_sharding
from spmd._rebuild import leaves, rebuild
from spmd._spec import Spec, entry_axes, spec_axes, uneven_dims


def microbatches(
    batch: Any, num_microbatches: int, mesh: Mesh, *, axes: tuple[str, ...]
) -> list[Any]:
    """Split a batch so that every device splits the rows that it has.

    Args:
        batch: Nested containers of tensors [batch, ...], split over `axes`.
        num_microbatches: How many.
        mesh: The mesh.
        axes: Axes that split the batch.

    Returns:
        Batches of the same form. Nothing crosses devices: where two devices have rows
        ``0 1 2 3 | 4 5 6 7``, two microbatches are ``0 1 | 4 5`` and ``2 3 | 6 7``.

    Raises:
        ValueError: Rows that do not divide.
    """
    ways = mesh.axis_size(axes)
    tensors = [(n, t) for n, t in leaves(batch) if isinstance(t, torch.Tensor)]
    for name, tensor in tensors:
        if tensor.ndim and tensor.shape[0] % (ways * num_microbatches):
            raise ValueError(
                f"microbatches: {name} {list(tensor.shape)}: {tensor.shape[0]} rows, "
                f"which {num_microbatches} microbatches over {ways} devices do not "
                f"divide; use a multiple of {ways * num_microbatches} rows"
            )

    def part(leaf: Any, i: int) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
            return leaf
        rest = leaf.shape[1:]
        rows = leaf.shape[0] // (ways * num_microbatches)
        value = leaf.reshape(ways, num_microbatches, rows, *rest)[:, i]
        value = value.reshape(ways * rows, *rest)
        return mark_sharding(value, mesh, (axes, *[None] * len(rest)))

    return [
        rebuild(batch, lambda leaf, i=i: part(leaf, i)) for i in range(num_microbatches)
    ]


def mark_gradients(module: nn.Module, axes: tuple[str, ...], *, once: bool) -> None:
    """Say how gradients of a module's weights are split where they are made.

    Split as its weight, a gradient is scattered over ``fsdp`` and then summed over what
    else splits the batch. XLA's GPU compiler joins the sums of several gradients, but
    not what it scattered before. Split over all these axes, it is scattered in one go,
    which is joined; its pieces are gathered over the other axes for the update. The TPU
    compiler joins the former; the latter not where copies are on other slices.

    Args:
        module: Whose parameters, which have annotations.
        axes: Axes that split the batch.
        once: Whether to split those of matrices over all of these, else as the
            weights.
    """
    for parameter in module.parameters():
        known = get_sharding(parameter)
        if known is None or not parameter.is_floating_point():
            continue
        spec = over_batch(known, parameter.shape, axes) if once else known.spec
        mark_gradient(parameter, known.mesh, spec)


def over_batch(known: Annotation, shape: Sequence[int], axes: tuple[str, ...]) -> Spec:
    """A weight's spec with the batch's other axes beside those that it has.

    Args:
        known: How the weight is split.
        shape: Its shape.
        axes: Axes that split the batch.

    Returns:
        The weight's own spec for vectors, for what no axis of the batch splits, and
        where the dim would not divide.

    Example:
        >>> mesh = Mesh({"replica": 2, "fsdp": 4})
        >>> known = Annotation(mesh, (None, "fsdp"))
        >>> over_batch(known, (16, 32), ("replica", "fsdp"))
        (None, ('fsdp', 'replica'))
        >>> over_batch(known, (16, 36), ("replica", "fsdp"))
        (None, 'fsdp')
    """
    mesh, spec = known.mesh, known.spec
    rest = [a for a in axes if a not in spec_axes(spec) and mesh.axis_size(a) > 1]
    dims = [d for d, e in enumerate(spec) if set(entry_axes(e)) & set(axes)]
    if len(spec) < 2 or not rest or not dims:
        return spec
    wide = list(spec)
    wide[dims[0]] = (*entry_axes(spec[dims[0]]), *rest)
    return spec if uneven_dims(shape, mesh, tuple(wide)) else tuple(wide)
