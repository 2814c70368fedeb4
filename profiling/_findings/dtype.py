"""Values that move in a wider dtype than they are computed with."""

from __future__ import annotations

import math

from profiling._collectives.collective import Collective, Moved
from profiling._findings.case import WEIGHTS, Case
from profiling._findings.finding import Change, Finding, Fix
from profiling._findings.reshards import spec_of
from profiling._findings.sums import cost_of
from profiling._findings.why import annotated_name, parameter_code, several, spec_code
from profiling._step.ops import StepOp
from spmd._meshes.spec import Spec, shard_shape

_BITS = {"f64": 64, "f32": 32, "bf16": 16, "f16": 16, "f8E4M3FN": 8, "f8E5M2": 8}


_NONE: tuple[None, None] = (None, None)


def wide_dtype(case: Case) -> list[Finding]:
    """Find what is gathered or moved wide, and cast to a narrower dtype by all users.

    Args:
        case: The step.

    Returns:
        A finding for each value.
    """
    return [*_weights(case), *_values(case)]


def _weights(case: Case) -> list[Finding]:
    found = []
    for argument, value in zip(case.ops.arguments, case.program.inputs, strict=True):
        own = [
            c
            for c in case.schedule.collectives
            if c.role == "weight gather"
            and any(m.tensor == value.name and _is(m, argument) for m in c.moved)
        ]
        casts = _casts(case, argument) if value.role in WEIGHTS and own else []
        if casts and value.spec is not None:
            change = Change(values=tuple((c.number, value.spec) for c in casts))
            cast = f"{parameter_code(value.name)}.to({_torch(casts[0])})"
            spec = spec_code(value.spec)
            code = f"weight = spmd.mark_sharding({cast}, mesh, {spec})"
            fix = Fix(
                text=f"cast {value.name} before it is gathered",
                code=code,
                place="where the weight is cast",
                change=change,
            )
            found.append(_finding(value.name, argument, casts[0], own, fix))
    return found


def _values(case: Case) -> list[Finding]:
    found = []
    for op in case.annotations:
        casts = _casts(case, op)
        spec, before = (spec_of(case, op), _spec_before(case, op)) if casts else _NONE
        own = _moved(case, op, before) if spec is not None and before else []
        if spec is None or before is None or not own:
            continue
        change = Change(
            values=tuple((c.number, spec) for c in casts),
            annotations=((op.number, before),),
        )
        where, name = op.source or op.op_name, annotated_name(op)
        fix = Fix(
            text=f"cast before the annotation at {where}, not after",
            code=f"{name} = {name}.to({_torch(casts[0])})",
            place=f"before the annotation at {where}",
            change=change,
        )
        found.append(_finding(where, op, casts[0], own, fix))
    return found


def _casts(case: Case, op: StepOp) -> list[StepOp]:
    """Casts to a narrower dtype, where nothing of the two passes reads it otherwise."""
    users = [u for u in case.ops.users(op) if u.scope.phase != "update"]
    if not users or any(
        u.name != "convert" or _BITS.get(u.dtype, 64) >= _BITS.get(op.dtype, 0)
        for u in users
    ):
        return []
    return users


def _moved(case: Case, op: StepOp, given: Spec) -> list[Collective]:
    """What moves pieces of the value as it was split before, in its dtype."""
    piece = math.prod(shard_shape(op.shape, case.mesh, given))
    size = piece * _BITS.get(op.dtype, 0) // 8
    return [
        c
        for c in case.moving
        if c.phase in (op.scope.phase, "")
        and any(m.operand_bytes == size and _is(m, op) for m in c.moved)
    ]


def _is(moved: Moved, op: StepOp) -> bool:
    """Whether it is moved in its dtype; one collective may move several dtypes."""
    return moved.shape.startswith(f"{op.dtype}[")


def _spec_before(case: Case, op: StepOp) -> Spec | None:
    at = op.operands[0]
    while not at.sharding and at.name != "argument":
        same = [o for o in at.operands if o.shape == op.shape]
        if at.is_dot or not same:
            return None
        at = same[0]
    return spec_of(case, at)


def _torch(op: StepOp) -> str:
    names = {"bf16": "torch.bfloat16", "f16": "torch.float16", "f32": "torch.float32"}
    return names.get(op.dtype, f"torch.{op.dtype}")


def _finding(
    where: str, op: StepOp, cast: StepOp, own: list[Collective], fix: Fix
) -> Finding:
    return Finding(
        kind="wide-dtype",
        severity="problem",
        where=where,
        what=f"{list(op.shape)} moves as {op.dtype}, but is used as {cast.dtype}",
        why=(
            f"{several(c.name for c in own)} moves {op.dtype}",
            f"all that reads it casts it to {cast.dtype} first"
            + (f" ({cast.source})" if cast.source else ""),
        ),
        wanted=False,
        fix=fix,
        **cost_of(own),
    )
