"""What crosses hosts though it need not: the order and sizes of axes decide that.

What crosses hosts in one order stays inside in another, but then something else crosses
them. So it is a problem only where the other order is faster, as far as an estimate can
tell, and a note elsewhere.
"""

from __future__ import annotations

from profiling._collectives.collective import Collective
from profiling._findings.case import Case
from profiling._findings.finding import Finding, Fix, Severity
from profiling._findings.meshes import (
    arranged,
    largest_near,
    mesh_code,
    mesh_fix,
    near_devices,
    stays_near,
    stride,
)
from profiling._findings.renumbered import renumbered_s
from profiling._findings.sums import cost_of
from profiling._findings.why import over
from profiling._report.show_words import seconds_text
from spmd._meshes.mesh import Mesh

Axes = tuple[str, ...]

_GAIN = 0.05
"""Of a step's time, below which another order counts as no faster.

A compiler may order instructions otherwise for it: in steps of the tests that changed
the estimate by up to 4%.
"""


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
    return [_of_tensor(case, far, axes)]


def weights_across_hosts(case: Case) -> list[Finding]:
    """Find weights gathered across hosts while copies of them share a host.

    Args:
        case: The step.

    Returns:
        One finding, or none.
    """
    far = [
        c
        for c in case.schedule.collectives
        if c.crosses_hosts and c.role == "weight gather" and c.axes
    ]
    axes = tuple(dict.fromkeys(a for c in far for a in c.axes))
    near = near_devices(case)
    copies = tuple(
        a
        for a in case.data_axes
        if a not in case.weight_axes
        and case.mesh.sizes[a] > 1
        and stays_near(case.mesh, [a], near)
    )
    if not copies or not axes or not set(axes) <= set(case.data_axes):
        return []
    far += [
        c
        for c in case.schedule.collectives
        if c.crosses_hosts and c.role == "gradient reduction" and c.axes == axes
    ]
    return [_of_weights(case, far, axes, copies)]


def _of_tensor(case: Case, far: list[Collective], axes: Axes) -> Finding:
    mesh, near, where = case.mesh, near_devices(case), over(axes)
    size = case.size(axes)
    why = [
        _counted(mesh, near, axes),
        f"each layer's activations wait for a sum or a gather over {where}, several "
        f"times a layer",
    ]
    outer = tuple(a for a in mesh.axis_names if a not in axes)
    fixes: list[Fix | None] = []
    advice = ""
    severity: Severity = "problem"
    if near % size == 0:
        text = f"put {where} innermost, so that it stays where the link is fast"
        turned = arranged(mesh, (*outer, *axes), near)
        fixes.append(_fix(case, turned, text))
        severity, compared = _in_order(case, turned)
        why.append(compared)
    else:
        why.append(
            f"{where} has {size} devices: at most {near} stand together, so a smaller "
            f"one is needed"
        )
        fixes += _smaller(case, axes, outer)
        advice = _as_advice(case, axes) if not any(fixes) else ""
    found = [f for f in fixes if f is not None]
    return Finding(
        kind="tensor-across-hosts",
        severity=severity,
        where=where,
        what=f"activations cross hosts over {where}, which splits layers",
        why=tuple(why),
        wanted=False,
        fix=found[0] if found else None,
        others=tuple(found[1:]),
        advice=advice,
        **cost_of(far),
    )


def _smaller(case: Case, axes: Axes, outer: Axes) -> list[Fix | None]:
    """Fewer devices on an axis that splits layers, more on one that splits the batch.

    What splits weights too comes first: then a device holds no more of them.
    """
    mesh, near = case.mesh, near_devices(case)
    long = max(axes, key=lambda a: mesh.sizes[a])
    size = largest_near(mesh, long, axes, near)
    takers = [a for a in case.data_axes if mesh.sizes[a] > 1]
    found: list[Fix | None] = []
    for taker in sorted(takers, key=lambda a: a not in case.weight_axes):
        sizes = {long: size, taker: mesh.sizes[taker] * mesh.sizes[long] // size}
        made = arranged(mesh, (*outer, *axes), near, **sizes)
        if size > 1 and stays_near(made, axes, near):
            text = (
                f"make {long} {size} devices long, innermost, and {taker} "
                f"{sizes[taker]}"
            )
            found.append(_fix(case, made, text))
    return found


def _as_advice(case: Case, axes: Axes) -> str:
    """What the script can do where no other axis takes the devices."""
    mesh, near = case.mesh, near_devices(case)
    long = max(axes, key=lambda a: mesh.sizes[a])
    size = largest_near(mesh, long, axes, near)
    inside = {a: size if a == long else mesh.sizes[a] for a in axes}
    left = mesh.size // case.size(axes) * (mesh.sizes[long] // size)
    name = next((n for n in ("replica", "data", "copies") if n not in inside), "rest")
    made = Mesh({name: left, **inside}, num_devices=mesh.size, dcn_axes=name)
    return (
        f"split layers over {size} devices of a host at most, and the batch over the "
        f"rest: mesh = {mesh_code(made)}, with {name} in the batch's spec"
    )


def _of_weights(case: Case, far: list[Collective], axes: Axes, copies: Axes) -> Finding:
    mesh, near = case.mesh, near_devices(case)
    where, those = over(axes), over(copies)
    inner = tuple(a for a in mesh.axis_names if a not in case.data_axes)
    first = tuple(a for a in mesh.axis_names if a not in (*axes, *inner))
    order = (*first, *(a for a in mesh.axis_names if a in axes), *inner)
    turned = arranged(mesh, order, near)
    is_near = stays_near(turned, axes, near)
    aim = "stays where the link is fast" if is_near else "crosses fewer hosts"
    text = f"put {those} outermost, so that {where} {aim}"
    fixes = [_fix(case, turned, text)]
    if not is_near:
        long = max(axes, key=lambda a: mesh.sizes[a])
        size = largest_near(mesh, long, (*axes, *inner), near)
        more = mesh.sizes[copies[0]] * mesh.sizes[long] // size
        made = arranged(mesh, order, near, **{long: size, copies[0]: more})
        if size > 1 and stays_near(made, axes, near):
            text = f"make {long} {size} devices long, and {copies[0]} {more}, outermost"
            fixes.append(_fix(case, made, text))
    found = [f for f in fixes if f is not None]
    severity, compared = _in_order(case, turned)
    return Finding(
        kind="weights-across-hosts",
        severity=severity,
        where=where,
        what=(
            f"weights are gathered across hosts over {where}, though the devices of "
            f"{those}, which hold the same ones, share a host"
        ),
        why=(
            _counted(mesh, near, axes),
            f"{where} gathers each weight twice a step and scatters its gradient; "
            f"{those} only adds up pieces of gradients, once",
            compared,
        ),
        wanted=False,
        fix=found[0] if found else None,
        others=tuple(found[1:]),
        **cost_of(far),
    )


def _in_order(case: Case, mesh: Mesh) -> tuple[Severity, str]:
    """Whether a step is faster on a mesh of the same sizes in another order."""
    now, then = case.schedule.step_s, renumbered_s(case, mesh)
    if now is None or then is None:
        return "note", "without a timeline it is not known which order is faster"
    what = f"{seconds_text(then)} instead of {seconds_text(now)} (estimate)"
    words = f"with devices in the order of {mesh} this schedule takes {what}"
    if then < (1 - _GAIN) * now:
        return "problem", words
    return "note", f"{words}: too little to be sure of, or nothing"


def _counted(mesh: Mesh, near: int, axes: Axes) -> str:
    apart = stride(mesh, axes[-1])
    words = f"neighbours on {over(axes)} are {apart} devices apart"
    if apart == 1:
        words = f"so the {mesh.axis_size(axes)} of {over(axes)} stand on several hosts"
    return (
        f"{mesh} counts devices with {mesh.axis_names[-1]} fastest, and {near} devices "
        f"stand together; {words}"
    )


def _fix(case: Case, mesh: Mesh, text: str) -> Fix | None:
    return mesh_fix(case, mesh, text) if case.mesh.is_iota else None
