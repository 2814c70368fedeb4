"""Specs: for each dim of a tensor, the mesh axes that split it.

A spec is a plain tuple with one entry per dim: an axis name, a tuple of names (major
to minor), or ``None``. This module checks specs and does their arithmetic.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

import numpy as np

from spmd._meshes.mesh import Mesh

SpecEntry: TypeAlias = str | tuple[str, ...] | None
Spec: TypeAlias = tuple[SpecEntry, ...]


def normalize_spec(
    spec: Iterable[Any],
    mesh: Mesh,
    *,
    shape: Sequence[int] | None,
    name: str = "tensor",
) -> Spec:
    """Check a spec against a mesh and a tensor's shape and write it one way.

    Args:
        spec: One entry per dim: axis name, tuple of names, ``None``, or (as in
            torch_xla) the index of a mesh axis.
        mesh: The mesh whose axes the spec names.
        shape: The tensor's shape; None where it is not known yet (the output of a
            module), and then the number of entries is not checked.
        name: What to call the tensor in an error.

    Returns:
        The spec with ``("fsdp",)`` written ``"fsdp"`` and ``()`` written ``None``.

    Raises:
        TypeError: An entry of another type, or a spec that is a bare string, a dict
            or a set.
        ValueError: Wrong length, an axis the mesh lacks, an axis used twice.

    Example:
        >>> normalize_spec(("fsdp", ()), Mesh({"fsdp": 8}), shape=(16, 4))
        ('fsdp', None)
    """
    where = name if shape is None else f"{name} {list(shape)}"
    if isinstance(spec, str | Mapping | Set) or not isinstance(spec, Iterable):
        axis = spec if isinstance(spec, str) else mesh.axis_names[0]
        raise TypeError(
            f"{where}: a spec is a tuple with one entry per dim, got {spec!r}; "
            f"write e.g. ({axis!r}, None)"
        )
    entries = tuple(_entry(e, mesh, where) for e in spec)
    if shape is not None and len(entries) != len(shape):
        raise ValueError(
            f"{where}: spec {entries} has {len(entries)} entries for {len(shape)} "
            f"dims; give one entry per dim, None where it is not split"
        )
    used = [a for e in entries for a in entry_axes(e)]
    for axis in used:
        if axis not in mesh.axis_names:
            near = difflib.get_close_matches(axis, mesh.axis_names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"{where}: spec {entries} names mesh axis {axis!r}, but the mesh has "
                f"{mesh.sizes}{hint}"
            )
        if used.count(axis) > 1:
            raise ValueError(
                f"{where}: spec {entries} uses mesh axis {axis!r} "
                f"{used.count(axis)} times; an axis can split one dim only"
            )
    return entries


def _entry(entry: Any, mesh: Mesh, where: str) -> SpecEntry:
    if entry is None or isinstance(entry, str):
        return entry
    if isinstance(entry, int | np.integer) and not isinstance(entry, bool):
        if not 0 <= entry < mesh.ndim:
            raise ValueError(
                f"{where}: axis index {entry} in the spec; the mesh has {mesh.ndim} "
                f"axes {mesh.axis_names}"
            )
        return mesh.axis_names[int(entry)]
    if isinstance(entry, tuple | list):
        inner = [_entry(e, mesh, where) for e in entry]
        axes = [a for a in inner if isinstance(a, str)]
        if len(axes) != len(inner):
            raise TypeError(f"{where}: spec entry {entry!r} may hold axis names only")
        return None if not axes else axes[0] if len(axes) == 1 else tuple(axes)
    raise TypeError(
        f"{where}: spec entry {entry!r} is a {type(entry).__name__}; an axis name, a "
        f"tuple of names or None is needed"
    )


def entry_axes(entry: SpecEntry) -> tuple[str, ...]:
    """Axes of one entry, major to minor.

    Args:
        entry: An entry of a spec.

    Returns:
        No, one or several axis names.
    """
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else entry


def spec_axes(spec: Spec) -> tuple[str, ...]:
    """All axes a spec uses, in the order of its dims.

    Args:
        spec: A normalised spec.

    Returns:
        Axis names.
    """
    return tuple(a for e in spec for a in entry_axes(e))


def num_shards(mesh: Mesh, spec: Spec) -> tuple[int, ...]:
    """Number of ways each dim is split.

    Args:
        mesh: The mesh.
        spec: A normalised spec.

    Returns:
        One count per dim.
    """
    return tuple(mesh.axis_size(entry_axes(e)) for e in spec)


def shard_shape(shape: Sequence[int], mesh: Mesh, spec: Spec) -> tuple[int, ...]:
    """Shape of the piece each device holds, padding included.

    Args:
        shape: The tensor's shape.
        mesh: The mesh.
        spec: A normalised spec.

    Returns:
        Each dim divided by its number of shards, rounded up as XLA does.

    Example:
        >>> shard_shape((1001, 6), Mesh({"fsdp": 8}), ("fsdp", None))
        (126, 6)
    """
    ways = num_shards(mesh, spec)
    return tuple(-(-d // n) for d, n in zip(shape, ways, strict=True))


def shard_slices(
    shape: Sequence[int], mesh: Mesh, spec: Spec, *, device: int
) -> tuple[slice, ...]:
    """Which part of the tensor a device holds, without the padding.

    Args:
        shape: The tensor's shape.
        mesh: The mesh.
        spec: A normalised spec.
        device: A device id.

    Returns:
        One slice per dim; empty at the end where a device holds padding only.

    Raises:
        ValueError: A device that is not in the mesh.

    Example:
        9 rows over 8 devices: pieces of 2 rows, so device 4 holds one and 5 none.

        >>> mesh = Mesh({"fsdp": 8})
        >>> shard_slices((9,), mesh, ("fsdp",), device=4)
        (slice(8, 9, None),)
        >>> shard_slices((9,), mesh, ("fsdp",), device=5)
        (slice(9, 9, None),)
    """
    where = mesh.coordinates(device)
    piece = shard_shape(shape, mesh, spec)
    slices = []
    for dim, entry, length in zip(shape, spec, piece, strict=True):
        tile = 0
        for axis in entry_axes(entry):
            tile = tile * mesh.axis_size(axis) + where[axis]
        slices.append(slice(min(tile * length, dim), min((tile + 1) * length, dim)))
    return tuple(slices)


def padded_elements(shape: Sequence[int], mesh: Mesh, spec: Spec) -> int:
    """Elements of padding over all shards, replicas not counted.

    Args:
        shape: The tensor's shape.
        mesh: The mesh.
        spec: A normalised spec.

    Returns:
        0 where every dim divides.
    """
    piece = math.prod(shard_shape(shape, mesh, spec))
    return piece * math.prod(num_shards(mesh, spec)) - math.prod(shape)


def uneven_dims(
    shape: Sequence[int], mesh: Mesh, spec: Spec
) -> tuple[tuple[int, int], ...]:
    """Dims that do not divide by the axes that split them.

    Args:
        shape: The tensor's shape.
        mesh: The mesh.
        spec: A normalised spec.

    Returns:
        Pairs of dim index and number of shards.
    """
    ways = num_shards(mesh, spec)
    return tuple(
        (i, n) for i, (d, n) in enumerate(zip(shape, ways, strict=True)) if d % n
    )
