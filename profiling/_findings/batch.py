"""Batch that every device holds or computes whole."""

from __future__ import annotations

import math

from profiling._findings.case import Case
from profiling._findings.finding import Change, Finding, Fix
from profiling._findings.fix_outputs import Root, outputs_fix
from profiling._findings.reshards import spec_of
from profiling._findings.why import (
    annotated_name,
    over,
    several,
    spec_code,
    split_words,
)
from profiling._step.ops import StepOp
from spmd._meshes.spec import Spec, entry_axes
from spmd._program.value import Value

_LITTLE = 64 * 1024


def batch_replicated(case: Case) -> list[Finding]:
    """Find inputs whose first dim is the batch's, but is not split.

    Args:
        case: The step.

    Returns:
        One finding for all of them, or none.
    """
    axes = case.data_axes or tuple(
        a for a in case.mesh.axis_names if a in case.weight_axes & set(_usual(case))
    )
    ways = case.size(axes)
    if ways < 2:
        return []
    split = [v for v in case.batch if v.spec and entry_axes(v.spec[0])]
    rows = {v.shape[0] for v in split}
    whole = [
        v
        for v in case.batch
        if not (v.spec and entry_axes(v.spec[0]))
        and v.shape[0] % ways == 0
        and (v.shape[0] in rows or not rows)
    ]
    return [_finding(case, whole, split, axes)] if whole else []


def _usual(case: Case) -> tuple[str, ...]:
    return case.mesh.data_axes


def _finding(
    case: Case, whole: list[Value], split: list[Value], axes: tuple[str, ...]
) -> Finding:
    ways = case.size(axes)
    specs = {v.name: _spec(v, axes) for v in whole}
    held = sum(v.device_bytes(case.mesh) for v in whole) * (ways - 1) // ways
    first = max(whole, key=lambda v: v.size_bytes)
    names, spec = several(specs), spec_code(specs[first.name])
    if split:
        why = f"{split[0].name} {split_words(split[0])}, so the batch is to be split"
    else:
        why = f"{over(axes)} splits the weights, and nothing splits the batch"
    what = f"every device is given all rows of {names}"
    if not split:
        what += f", so all {ways} compute the same"
    return Finding(
        kind="batch-replicated",
        severity="problem" if held >= _LITTLE or not split else "note",
        where=names,
        what=what,
        why=(f"{first.name} {split_words(first)}", why),
        wanted=False,
        tensors=tuple(specs),
        axes=axes,
        held_bytes=held,
        fix=Fix(
            text=f"split {names} over {over(axes)} too",
            code=f"batch = spmd.shard_batch(batch, mesh, {spec})",
            place="where the batch is put on the devices (in a trace: batch_spec=...)",
            change=Change(inputs=tuple(specs.items())),
        ),
    )


def _spec(value: Value, axes: tuple[str, ...]) -> Spec:
    rest = (value.spec or (None,) * len(value.shape))[1:]
    return (axes[0] if len(axes) == 1 else axes, *rest)


def rows_computed_twice(case: Case) -> list[Finding]:
    """Find matmuls that compute the same rows on several devices of the batch's axes.

    Args:
        case: The step.

    Returns:
        One finding for each module.
    """
    ways, found = case.size(case.data_axes), []
    if ways < 2:
        return []
    for op, weight in case.forward_dots:
        split = case.splits.of(op)
        mine = {a for e in case.values[weight].spec or () for a in entry_axes(e)}
        rows, _ = case.row_dims(op)
        if split is None or mine & set(case.data_axes) or split.sums > 1:
            continue
        if math.prod(op.shape[d] for d in rows) % ways:
            continue
        done = math.prod(split.ways)
        wanted = ways * case.size(tuple(mine))
        if done * 2 > wanted or math.prod(split.ways[d] for d in rows) >= ways:
            continue
        found.append(_computed_by_all(case, Root(op, weight, split), wanted // done))
    return found


def _computed_by_all(case: Case, root: Root, copies: int) -> Finding:
    op, weight = root.op, case.values[root.weight]
    module, axes = op.scope.module or "the model", case.data_axes
    why = [
        f"{weight.name} {split_words(weight)}",
        f"what {module} is given is not split over {over(axes)} any more, as the "
        f"batch is",
    ]
    fixes = [outputs_fix(case, module, [root])]
    lost = _lost_at(case, case.activation_of(op))
    if lost is not None:
        where, given = lost.source or lost.op_name, spec_of(case, lost) or ()
        spec = (axes[0] if len(axes) == 1 else axes, *given[1:])
        why.append(f"the annotation at {where} makes it so: {spec_code(given)}")
        code = f"spmd.mark_sharding({annotated_name(lost)}, mesh, {spec_code(spec)})"
        again = Fix(
            text=f"leave the rows split in the annotation at {where}",
            code=code,
            place=f"in place of the annotation at {where}",
            change=Change(annotations=((lost.number, spec),)),
        )
        fixes.insert(0, again)
    return Finding(
        kind="batch-replicated",
        severity="problem",
        where=module,
        what=f"{module} computes the same {list(root.split.piece)} on {copies} devices",
        why=tuple(why),
        wanted=False,
        tensors=(weight.name,),
        axes=axes,
        modules=(op.scope.module,) if op.scope.module else (),
        phases=("forward",),
        sources=(op.source,) if op.source else (),
        fix=fixes[0],
        others=tuple(fixes[1:]),
    )


def _lost_at(case: Case, op: StepOp) -> StepOp | None:
    """The annotation behind a value that takes the batch's axes off its rows."""
    while op.name != "argument":
        if op.sharding:
            spec = spec_of(case, op)
            is_free = spec is not None and not (
                set(case.data_axes) & {a for entry in spec for a in entry_axes(entry)}
            )
            return op if is_free else None
        same = [o for o in op.operands if o.shape == op.shape]
        if op.is_dot or not same:
            return None
        op = same[0]
    return None
