"""Meshes and specs of torch_xla, DTensor and jax, converted to ours.

Everything is recognised by the names of its type and attributes, so that a plan or a
program can be read where none of these libraries is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, SpecEntry, entry_axes, normalize_spec

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement


def mesh_from(obj: Any) -> Mesh:
    """Convert a mesh.

    Args:
        obj: Our `Mesh` (returned as it is), torch_xla's ``Mesh`` or ``HybridMesh``,
            torch's ``DeviceMesh``, or jax's ``Mesh`` or ``AbstractMesh``. Axes without
            names become ``axis0``, ``axis1``, ...

    Returns:
        The same devices in the same order.

    Raises:
        TypeError: An object that is no mesh.
        ValueError: A mesh over a part of the devices.

    Example:
        >>> mesh_from(Mesh({"fsdp": 8}))
        Mesh(fsdp=8)
    """
    if isinstance(obj, Mesh):
        return obj
    if _is(obj, "torch_xla", "Mesh"):
        dcn = getattr(obj, "dcn_mesh_shape", None) or ()
        return _build(obj, obj.device_ids, obj.mesh_shape, obj.axis_names, dcn)
    if _is(obj, "torch", "DeviceMesh"):
        ids = np.asarray(obj.mesh.tolist(), dtype=np.int64)
        return _build(obj, ids, ids.shape, obj.mesh_dim_names)
    if _is(obj, "jax", "AbstractMesh"):
        return Mesh(dict(zip(obj.axis_names, obj.axis_sizes, strict=True)))
    if _is(obj, "jax", "Mesh"):
        ids = np.asarray([d.id for d in obj.devices.flat], dtype=np.int64)
        return _build(obj, ids, obj.devices.shape, obj.axis_names)
    raise TypeError(
        f"a mesh is needed, got {_shown(obj)}; allowed are spmd.Mesh, torch_xla's "
        f"Mesh, torch's DeviceMesh and jax's Mesh"
    )


def spec_from(
    obj: Any, mesh: Mesh, *, shape: Sequence[int], name: str = "tensor"
) -> Spec:
    """Convert a spec and check it against a mesh and a tensor's shape.

    Args:
        obj: A plain spec, torch_xla's ``ShardingSpec`` (its ``minibatch`` says how
            hosts load data and is no part of a spec), DTensor placements (one for
            each mesh axis), or jax's ``PartitionSpec`` or ``NamedSharding`` (dims it
            leaves out are not split).
        mesh: The mesh whose axes the spec names.
        shape: The tensor's shape.
        name: What to call the tensor in an error.

    Returns:
        The normalised spec. DTensor splits an uneven dim axis by axis, XLA over all
        its axes at once: 9 rows over 2 x 4 devices begin 2, 2, 1, 0 there and
        2, 2, 2, 2 here.

    Raises:
        TypeError: An entry of the wrong type.
        ValueError: A spec on another mesh, a placement that no spec can say, or a spec
            that does not fit; see `normalize_spec`.

    Example:
        >>> spec_from((("fsdp",), None), Mesh({"fsdp": 8}), shape=(16, 4))
        ('fsdp', None)
    """
    where = f"{name} {list(shape)}"
    entries = obj
    if _is(obj, "torch_xla", "ShardingSpec"):
        _check_same_mesh(obj.mesh, mesh, where)
        entries = obj.partition_spec
    elif _is(obj, "jax", "NamedSharding"):
        _check_same_mesh(obj.mesh, mesh, where)
        entries = _jax_entries(obj.spec, len(shape), where)
    elif _is(obj, "jax", "PartitionSpec") or _is(obj, "jax", "P"):
        entries = _jax_entries(obj, len(shape), where)
    elif _is_placement(obj):
        entries = _placement_entries((obj,), mesh, len(shape), where)
    elif isinstance(obj, list | tuple) and any(map(_is_placement, obj)):
        entries = _placement_entries(obj, mesh, len(shape), where)
    return normalize_spec(entries, mesh, shape=shape, name=name)


def placements_from_spec(spec: Spec, mesh: Mesh) -> tuple[Placement, ...]:
    """Convert a spec to DTensor placements.

    Args:
        spec: A normalised spec.
        mesh: The mesh whose axes it names.

    Returns:
        One ``Shard(dim)`` or ``Replicate()`` for each mesh axis.

    Raises:
        ValueError: A dim split by axes in another order than the mesh has them, which
            placements cannot say; an axis the mesh lacks.
    """
    from torch.distributed.tensor import Replicate, Shard

    dim_of: dict[str, int] = {}
    for dim, entry in enumerate(spec):
        axes = entry_axes(entry)
        order = [a for a in axes if mesh.axis_size(a) > 1]
        ordered = sorted(order, key=mesh.axis_index)
        if order != ordered:
            raise ValueError(
                f"spec {spec}: dim {dim} is split by {tuple(order)}, major to minor, "
                f"but DTensor placements always split in the order of the mesh, "
                f"{tuple(ordered)}. Use that order, or a mesh with the axes the other "
                f"way round"
            )
        dim_of.update(dict.fromkeys(axes, dim))
    return tuple(
        Shard(dim_of[axis]) if axis in dim_of else Replicate()
        for axis in mesh.axis_names
    )


def _build(
    obj: Any,
    device_ids: np.ndarray,
    shape: Iterable[int],
    names: Sequence[str] | None,
    dcn_shape: Iterable[int] = (),
) -> Mesh:
    shape = tuple(int(s) for s in shape)
    axis_names = tuple(names or (f"axis{i}" for i in range(len(shape))))
    ids = np.asarray(device_ids).reshape(-1).tolist()
    if sorted(ids) != list(range(len(ids))):
        raise ValueError(
            f"{_shown(obj)} covers devices {ids[:16]}, a part of the machine; every "
            f"tensor lives on all devices, so pass the whole mesh and name the axis in "
            f"the spec"
        )
    dcn = [n for n, size in zip(axis_names, dcn_shape, strict=False) if size > 1]
    return Mesh(ids, shape, axis_names, dcn_axes=dcn)


def _check_same_mesh(obj: Any, mesh: Mesh, where: str) -> None:
    given = mesh_from(obj)
    same = (given.shape, given.device_ids) == (mesh.shape, mesh.device_ids)
    # A mesh without names is met by a spec of axis indices, whatever ours are called.
    if not same or (obj.axis_names and given.axis_names != mesh.axis_names):
        raise ValueError(
            f"{where}: the spec was made for {given!r}, not for {mesh!r}; pass the "
            f"mesh it was made for"
        )


def _jax_entries(spec: Any, ndim: int, where: str) -> tuple[Any, ...]:
    pending = getattr(spec, "unreduced", ())
    if pending:
        raise ValueError(
            f"{where}: {spec} leaves sums over {sorted(pending)} pending, which an "
            f"annotation cannot say; reduce first"
        )
    entries = tuple(spec)
    for dim, entry in enumerate(entries):
        if repr(entry) == "UNCONSTRAINED":
            raise ValueError(
                f"{where}: dim {dim} of {spec} is UNCONSTRAINED, which a spec cannot "
                f"say; use an axis, or None for a dim that is not split"
            )
    return entries + (None,) * (ndim - len(entries))


def _placement_entries(
    placements: Sequence[Any], mesh: Mesh, ndim: int, where: str
) -> tuple[SpecEntry, ...]:
    if not all(map(_is_placement, placements)):
        raise TypeError(
            f"{where}: {placements} mixes DTensor placements (one for each mesh axis) "
            f"and spec entries (one for each dim); use one of them"
        )
    if len(placements) != mesh.ndim:
        raise ValueError(
            f"{where}: {len(placements)} placements {placements} for the {mesh.ndim} "
            f"axes of {mesh!r}; give one for each axis, Replicate() where it "
            f"splits nothing"
        )
    axes: list[tuple[str, ...]] = [()] * ndim
    for axis, placement in zip(mesh.axis_names, placements, strict=True):
        dim = _placement_dim(placement, axis, ndim, where)
        if dim is not None:
            axes[dim] += (axis,)
    return tuple(axes)


def _placement_dim(placement: Any, axis: str, ndim: int, where: str) -> int | None:
    """The dim that a placement splits, counted from the front."""
    kind = type(placement).__name__
    if kind == "Replicate":
        return None
    if kind == "Partial":
        raise ValueError(
            f"{where}: {placement!r} on mesh axis {axis!r} is a sum still to be done, "
            f"not a way to lay a tensor out; XLA places such sums itself. Reduce first "
            f"(DTensor.redistribute), or use Replicate() or Shard(dim)"
        )
    if kind != "Shard":
        raise ValueError(
            f"{where}: {placement!r} on mesh axis {axis!r} is not Shard or Replicate; "
            f"write the spec instead, with the axes of a dim major to minor, e.g. "
            f"('tensor', 'fsdp')"
        )
    dim = placement.dim + ndim if placement.dim < 0 else placement.dim
    if not 0 <= dim < ndim:
        raise ValueError(
            f"{where}: Shard({placement.dim}) on mesh axis {axis!r}, but the tensor "
            f"has {ndim} dims; use {-ndim}..{ndim - 1}"
        )
    return dim


def _is_placement(obj: Any) -> bool:
    return _is(obj, "torch", "Placement")


def _is(obj: Any, package: str, name: str) -> bool:
    """Whether an object's class, or one it derives from, has this name and package."""
    return any(
        cls.__name__ == name and cls.__module__.split(".")[0] == package
        for cls in type(obj).__mro__
    )


def _shown(obj: Any) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__} {str(obj)[:60]}"
