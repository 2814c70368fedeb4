"""Tensors that are padded because a dim does not divide."""

from __future__ import annotations

import math
from collections import defaultdict

from profiling._collectives.step_values import owner
from profiling._findings.case import Case
from profiling._findings.finding import Change, Finding, Fix
from profiling._findings.why import over, pattern_of, plan_spec, several, spec_code
from spmd._meshes.spec import (
    Spec,
    entry_axes,
    num_shards,
    padded_elements,
    spec_axes,
    uneven_dims,
)
from spmd._program.value import Value, layer_dims

_LEAST_BYTES, _MUCH, _SOME = 16 * 1024, 0.1, 0.01


def padding_waste(case: Case) -> list[Finding]:
    """Find inputs of which devices hold padding.

    Args:
        case: The step.

    Returns:
        One finding for each parameter with its state, or for like ones together.
    """
    groups: dict[str, list[Value]] = defaultdict(list)
    for value in case.program.inputs:
        if value.spec and uneven_dims(value.shape, case.mesh, value.spec):
            groups[pattern_of(owner(value.name))].append(value)
    found = []
    for pattern, values in groups.items():
        padding = sum(_padding_bytes(case, v) for v in values)
        share = padding / (padding + sum(v.size_bytes for v in values))
        if padding >= _LEAST_BYTES and share >= _SOME:
            found.append(_finding(case, pattern, values, padding, share))
    return found


def _padding_bytes(case: Case, value: Value) -> int:
    elements = padded_elements(value.shape, case.mesh, value.spec or ())
    return elements * value.size_bytes // max(1, math.prod(value.shape))


def _finding(
    case: Case, pattern: str, values: list[Value], padding: int, share: float
) -> Finding:
    first = max(values, key=lambda v: v.size_bytes)
    spec = first.spec or ()
    dim, ways = uneven_dims(first.shape, case.mesh, spec)[0]
    size = first.shape[dim]
    padded = math.ceil(size / ways) * ways
    axes = entry_axes(spec[dim])
    fix = _fix(case, pattern, values)
    copies = case.mesh.size // math.prod(num_shards(case.mesh, spec))
    return Finding(
        kind="padding-waste",
        severity="problem" if share >= _MUCH else "note",
        where=pattern,
        what=(
            f"{share:.0%} of what devices hold of {several(_names(values))} is padding"
        ),
        why=(
            f"dim {dim} of {first.name} {list(first.shape)} is split {ways} ways over "
            f"{over(axes)}",
            f"{size} does not divide by {ways}: each device has room for "
            f"{math.ceil(size / ways)}, {padded} together",
            "padding is stored, moved and computed with like the rest",
        ),
        wanted=False,
        tensors=tuple(v.name for v in values),
        axes=spec_axes(spec),
        held_bytes=padding * copies // case.mesh.size,
        fix=fix,
        advice=""
        if fix is not None
        else f"make dim {dim} of {pattern} a multiple where the model's sizes are "
        f"chosen: {padded} instead of {size}",
    )


def _names(values: list[Value]) -> list[str]:
    return list(dict.fromkeys(owner(v.name) for v in values))


def _fix(case: Case, pattern: str, values: list[Value]) -> Fix | None:
    parameters = [v for v in values if v.role == "parameter"]
    specs = {v.name: _elsewhere(case, v) for v in parameters or values}
    moved = {n: s for n, s in specs.items() if s is not None}
    if len(moved) < len(specs):
        return None
    spec = plan_spec(*next(iter(moved.items())))
    return Fix(
        text=f"split another dim of {pattern}, one that divides",
        code=f'plan = spmd.Plan({{"{pattern}": {spec_code(spec)}}}) | plan',
        place="before spmd.shard_module(model, mesh, plan)",
        change=Change(inputs=tuple(moved.items())),
        parameters=moved if parameters else {},
    )


def _elsewhere(case: Case, value: Value) -> Spec | None:
    """The same axes on another dim, where all of them divide."""
    spec = value.spec or ()
    uneven = {d for d, _ in uneven_dims(value.shape, case.mesh, spec)}
    dim = min(uneven)
    dims = layer_dims(value.name, value.shape)
    for other in sorted(dims, key=lambda d: -value.shape[d]):
        if spec[other] is not None:
            continue
        if value.shape[other] % case.size(entry_axes(spec[dim])) == 0:
            found = list(spec)
            found[other], found[dim] = spec[dim], None
            return tuple(found)
    return None
