"""Gradients that are reduced whole, where a piece of them is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from profiling._collectives.collective import Collective
from profiling._findings.case import Case
from profiling._findings.finding import Change, Finding, Fix
from profiling._findings.reshards import spec_of
from profiling._findings.sums import cost_of
from profiling._findings.why import (
    over,
    parameter_code,
    pattern_of,
    several,
    spec_code,
    split_words,
)
from profiling._step.ops import StepOp
from spmd._meshes.spec import spec_axes, uneven_dims
from spmd._program.value import Value


def gradients_all_reduced(case: Case) -> list[Finding]:
    """Find gradients that are summed whole on every device, to keep a piece.

    Args:
        case: The step.

    Returns:
        One finding for each set of axes.
    """
    groups: dict[tuple[str, ...], list[tuple[Collective, Value]]] = defaultdict(list)
    for collective in case.schedule.collectives:
        if collective.kind != "all-reduce":
            continue
        for moved in collective.moved:
            value = case.values.get(moved.tensor)
            if moved.role == "gradient reduction" and value is not None:
                axes = set(spec_axes(value.spec or ())) & set(collective.axes)
                if axes and not uneven_dims(value.shape, case.mesh, value.spec or ()):
                    groups[collective.axes].append((collective, value))
    return [_all_reduced(case, axes, found) for axes, found in groups.items()]


def _all_reduced(
    case: Case, axes: tuple[str, ...], found: Sequence[tuple[Collective, Value]]
) -> Finding:
    values = list(dict.fromkeys(v for _, v in found))
    value = values[0]
    placed = [a for v in values for a in _placed(case, v)]
    is_cpu = _is_cpu(case)
    if placed:
        cause = (
            f"an annotation of its gradient says that it is whole over {over(axes)}, "
            f"so each device sums all of it"
        )
    elif is_cpu:
        cause = "the CPU's compiler has no reduce-scatter: GPUs' and TPUs' do"
    else:
        cause = (
            "no annotation says so: the compiler sums it so of itself, as it does the "
            "rows of a table that was looked up"
        )
    cost = cost_of(list(dict.fromkeys(c for c, _ in found)))
    names = {v.name for v in values}
    cost["wire_bytes"] = sum(
        m.wire_bytes * c.num_runs
        for c in dict.fromkeys(c for c, _ in found)
        for m in c.moved
        if m.tensor in names
    )
    return Finding(
        kind="gradient-all-reduced",
        severity="problem" if placed else "note",
        where=several(pattern_of(v.name) for v in values),
        what=(
            f"the gradient of {several(v.name for v in values)} is summed whole on "
            f"every device over {over(axes)}, and a piece of it is kept"
        ),
        why=(
            f"{value.name} {split_words(value)}",
            cause,
            "a reduce-scatter sends half as much and leaves each device its piece",
        ),
        wanted=False,
        fix=_split(case, values) if placed else None,
        **cost,
    )


def _split(case: Case, values: Sequence[Value]) -> Fix:
    """Annotate gradients as their weights."""
    changes = [(op.number, v.spec or ()) for v in values for op in _placed(case, v)]
    spec = spec_code(values[0].spec or ())
    return Fix(
        text=f"split the gradient of {several(v.name for v in values)} as the weight",
        code=(
            f"spmd.mark_sharding({parameter_code(values[0].name)}, mesh, {spec}, "
            f"grad={spec})"
        ),
        place="where the gradient of the parameter is annotated",
        change=Change(annotations=tuple(changes)),
    )


def _placed(case: Case, value: Value) -> list[StepOp]:
    """Annotations of a parameter's gradient that do not split it as the parameter."""
    wanted = set(spec_axes(value.spec or ()))
    whole = [
        op
        for op in case.annotations
        if op.shape == value.shape
        and (spec := spec_of(case, op)) is not None
        and wanted - set(spec_axes(spec))
    ]
    gradients = weight_gradients(case, value) if whole else []
    return [op for op in whole if case.ops.behind(op) in gradients]


def weight_gradients(case: Case, value: Value) -> list[StepOp]:
    """Matmuls that make the gradient of a weight.

    Args:
        case: The step.
        value: The parameter.

    Returns:
        One for each use of it.
    """
    modules = {op.scope.module for op, name in case.forward_dots if name == value.name}
    sizes = sorted(value.shape)
    return [
        op
        for op in case.ops.ops
        if op.is_dot
        and op.scope.phase == "backward"
        and op.scope.module in modules
        and sorted(op.shape) == sizes
        and not any(case.ops.input_behind(o, ("parameter",)) for o in op.operands)
    ]


def _is_cpu(case: Case) -> bool:
    target = case.schedule.target
    return target is not None and target.kind == "cpu"
