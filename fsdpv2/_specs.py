"""The default spec of a parameter under FSDP, and of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmd import Mesh

AXIS = "fsdp"
"""The mesh axis that splits parameters."""

MIN_SHARD_ELEMENTS = 4096
"""Parameters with fewer elements stay whole on every device.

Gathering 16 KiB costs the latency of a collective and saves next to nothing: norms and
biases of common widths are below it, every matrix is above.
"""


def parameter_spec(
    shape: Sequence[int],
    mesh: Mesh,
    *,
    axis: str,
    min_elements: int,
    is_table: bool = False,
) -> tuple[str | None, ...]:
    """Split the largest dim that divides over the axis (ties: the first one).

    A table that rows are looked up in is split on its columns, if these divide: then
    the rows that one device asks for are exchanged, where pieces of a table that is
    split on its rows are added up for the rows of all devices.

    Args:
        shape: The parameter's shape.
        mesh: The mesh.
        axis: The axis that shards parameters.
        min_elements: Smaller parameters stay whole.
        is_table: It is the weight of an embedding.

    Returns:
        One entry per dim. Where no dim divides, the largest is split with padding if
        it is longer than the axis; otherwise nothing is.

    Example:
        >>> mesh = Mesh({"fsdp": 8})
        >>> parameter_spec((50257, 768), mesh, axis="fsdp", min_elements=4096)
        (None, 'fsdp')
        >>> parameter_spec((768,), mesh, axis="fsdp", min_elements=4096)
        (None,)
        >>> parameter_spec(
        ...     (1024, 512), mesh, axis="fsdp", min_elements=4096, is_table=True
        ... )
        (None, 'fsdp')
    """
    whole: tuple[str | None, ...] = (None,) * len(shape)
    if not shape or math.prod(shape) < min_elements:
        return whole
    ways = mesh.axis_size(axis)
    dims = [d for d in range(len(shape)) if shape[d] % ways == 0]
    if is_table and len(shape) - 1 in dims:
        dims = [len(shape) - 1]
    if not dims:
        dims = [d for d in range(len(shape)) if shape[d] > ways]
    if not dims:
        return whole
    split = max(dims, key=lambda d: (shape[d], -d))
    return tuple(axis if d == split else None for d in range(len(shape)))


def batch_axes(
    mesh: Mesh, extra_data_axis: str | None, *, axis: str
) -> tuple[str, ...]:
    """Axes that split the batch, in the order of the mesh.

    Args:
        mesh: The mesh.
        extra_data_axis: One more than those whose name says so.
        axis: The axis that shards parameters.

    Returns:
        For instance ``("replica", "fsdp")``.

    Raises:
        ValueError: An axis the mesh does not have.
    """
    for name in (axis, extra_data_axis):
        if name is not None and name not in mesh.axis_names:
            raise ValueError(
                f"FSDPv2: the mesh has no axis {name!r}, only {mesh.sizes}; parameters "
                f"are split over 'fsdp' and the batch over it and extra_data_axis. "
                f"Use e.g. Mesh({{'fsdp': -1}})"
            )
    wanted = {axis, extra_data_axis, *mesh.data_axes}
    return tuple(a for a in mesh.axis_names if a in wanted)
