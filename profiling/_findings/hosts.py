"""Activations of a split layer that cross hosts, which the order of axes decides."""

from __future__ import annotations

from profiling._collectives.collective import Collective
from profiling._findings.case import Case
from profiling._findings.finding import Change, Finding, Fix
from profiling._findings.sums import cost_of
from profiling._findings.why import over
from spmd._mesh import Mesh


def tensor_across_hosts(case: Case) -> list[Finding]:
    """Find axes that split layers, not the batch, and whose traffic crosses hosts.

    Args:
        case: The step.

    Returns:
        One finding, or none.
    """
    far = [
        c
        for c in case.moving
        if c.crosses_hosts and c.axes and not set(c.axes) & set(case.data_axes)
    ]
    if not far:
        return []
    axes = tuple(dict.fromkeys(a for c in far for a in c.axes))
    return [_finding(case, far, axes)]


def _finding(case: Case, far: list[Collective], axes: tuple[str, ...]) -> Finding:
    target, mesh = case.schedule.target, case.mesh
    near = target.near_devices if target is not None else 0
    size = case.size(axes)
    where = over(axes)
    why = [
        f"{mesh} counts devices with {mesh.axis_names[-1]} fastest, and {near} devices "
        f"stand together; neighbours on {where} are "
        f"{_stride(mesh, axes[-1])} devices apart",
        f"each layer's activations wait for a sum or a gather over {where}, several "
        f"times a layer",
    ]
    fix = None
    if size <= near and near % size == 0 and not mesh.dcn_axes and mesh.is_iota:
        order = (*(a for a in mesh.axis_names if a not in axes), *axes)
        turned = Mesh({a: mesh.sizes[a] for a in order})
        sizes = ", ".join(f'"{a}": {mesh.sizes[a]}' for a in order)
        fix = Fix(
            text=f"put {where} innermost, so that it stays where the link is fast",
            code=f"mesh = spmd.Mesh({{{sizes}}})",
            place="where the mesh is made",
            change=Change(mesh=turned),
        )
    else:
        why.append(
            f"{where} has {size} devices: at most {near} stand together, so a smaller "
            f"one is needed"
        )
    return Finding(
        kind="tensor-across-hosts",
        severity="problem",
        where=where,
        what=f"activations cross hosts over {where}, which splits layers",
        why=tuple(why),
        wanted=False,
        fix=fix,
        **cost_of(far),
    )


def _stride(mesh: Mesh, axis: str) -> int:
    stride = 1
    for name in reversed(mesh.axis_names):
        if name == axis:
            return stride
        stride *= mesh.sizes[name]
    return stride
