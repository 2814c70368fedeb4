"""Meshes of the same axes in another order or of other sizes, and what stays near."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from profiling._findings.case import Case
from profiling._findings.finding import Change, Fix
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import uneven_dims


def near_devices(case: Case) -> int:
    """How many devices a fast link joins.

    Args:
        case: The step.

    Returns:
        All of them where the target is not known.
    """
    target = case.schedule.target
    return case.mesh.size if target is None else target.near_devices


def stays_near(mesh: Mesh, axes: Sequence[str], near: int) -> bool:
    """Whether the devices along some axes stand together.

    Args:
        mesh: The mesh; its devices count up.
        axes: The axes.
        near: How many devices stand together.

    Returns:
        True where no group of these axes leaves its block of `near` devices.

    Example:
        >>> mesh = Mesh({"replica": 2, "fsdp": 8})
        >>> stays_near(mesh, ["fsdp"], 8), stays_near(mesh, ["replica"], 8)
        (True, False)
    """
    return all(len({d // near for d in group}) == 1 for group in mesh.axis_groups(axes))


def stride(mesh: Mesh, axis: str) -> int:
    """How many devices apart neighbours on an axis are.

    Args:
        mesh: The mesh; its devices count up.
        axis: The axis.

    Returns:
        1 for the innermost axis.

    Example:
        >>> stride(Mesh({"tensor": 2, "fsdp": 8}), "tensor")
        8
    """
    return math.prod(mesh.shape[mesh.axis_index(axis) + 1 :])


def arranged(mesh: Mesh, order: Iterable[str], near: int, **sizes: int) -> Mesh:
    """The same axes in another order, some of them of other sizes.

    Args:
        mesh: The mesh; its devices count up.
        order: All its axes, outermost first.
        near: How many devices stand together.
        **sizes: New sizes.

    Returns:
        A mesh; where its outermost axes are just what lies between hosts, it says so.

    Example:
        >>> arranged(Mesh({"fsdp": 8, "replica": 2}), ["replica", "fsdp"], 8)
        Mesh(replica=2[dcn], fsdp=8)
    """
    made = {axis: sizes.get(axis, mesh.sizes[axis]) for axis in order}
    outer: list[str] = []
    for axis in made:
        if math.prod(made[a] for a in outer) * near >= mesh.size:
            break
        outer.append(axis)
    if math.prod(made[a] for a in outer) * near != mesh.size:
        outer = []
    return Mesh(made, num_devices=mesh.size, dcn_axes=outer)


def mesh_code(mesh: Mesh) -> str:
    """A mesh as Python.

    Args:
        mesh: The mesh; its devices count up.

    Returns:
        Source.

    Example:
        >>> mesh_code(Mesh({"fsdp": 8, "tensor": 2}))
        'spmd.Mesh({"fsdp": 8, "tensor": 2})'
        >>> mesh_code(Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2}))
        'spmd.Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2})'
    """

    def sizes(axes: Iterable[str]) -> str:
        return "{" + ", ".join(f'"{a}": {mesh.sizes[a]}' for a in axes) + "}"

    outer = mesh.axis_names[: len(mesh.dcn_axes)]
    if not outer or outer != mesh.dcn_axes:
        return f"spmd.Mesh({sizes(mesh.axis_names)})"
    inner = mesh.axis_names[len(outer) :]
    return f"spmd.Mesh.hybrid(ici={sizes(inner)}, dcn={sizes(outer)})"


def largest_near(mesh: Mesh, axis: str, beside: Sequence[str], near: int) -> int:
    """The most devices that an axis may have to stand together with others.

    Args:
        mesh: The mesh.
        axis: The axis to make smaller.
        beside: Axes that are to stand inside too.
        near: How many devices stand together.

    Returns:
        A divisor of its size; 1 where not even that is possible.

    Example:
        >>> largest_near(Mesh({"fsdp": 2, "tensor": 16}), "tensor", [], 8)
        8
    """
    others = math.prod(mesh.sizes[a] for a in beside if a != axis)
    size = mesh.sizes[axis]
    fitting = [n for n in range(1, size) if size % n == 0 and near % (n * others) == 0]
    return max(fitting, default=1)


def mesh_fix(case: Case, mesh: Mesh, text: str) -> Fix | None:
    """A fix that is another mesh.

    Args:
        case: The step.
        mesh: The other mesh.
        text: What it does.

    Returns:
        None where it is the mesh that there is, or an input would have to be padded.
    """
    if mesh == case.mesh or mesh.shape == case.mesh.shape == (mesh.size,):
        return None
    for value in case.program.inputs:
        spec = value.spec  # None where nothing was said, so nothing is split
        if spec is None or uneven_dims(value.shape, case.mesh, spec):
            continue
        if uneven_dims(value.shape, mesh, spec):
            return None
    return Fix(
        text=text,
        code=f"mesh = {mesh_code(mesh)}",
        place="where the mesh is made",
        change=Change(mesh=mesh),
    )
