"""Parameters, optimizer state and constants that every device holds whole."""

from __future__ import annotations

from collections import defaultdict

from profiling._collectives.step_values import owner
from profiling._findings.case import Case
from profiling._findings.finding import Change, Finding, Fix
from profiling._findings.why import (
    over,
    pattern_of,
    plan_spec,
    several,
    spec_code,
    split_words,
)
from spmd._meshes.spec import Spec, spec_axes
from spmd._program.value import Value, layer_dims

_ROLES = ("parameter", "buffer", "optimizer", "constant", "gradient")
_LARGE, _SHARE = 1 << 20, 0.02


def large_replicated(case: Case) -> list[Finding]:
    """Find what is large and not split at all.

    Args:
        case: The step.

    Returns:
        One finding for each parameter with its state, or for like ones together.
    """
    arguments = max(1, case.schedule.memory.argument_bytes)
    groups: dict[str, list[Value]] = defaultdict(list)
    for value in case.program.inputs:
        if value.role in _ROLES and not spec_axes(value.spec or ()):
            groups[pattern_of(owner(value.name))].append(value)
    found = []
    for pattern, values in groups.items():
        held = sum(v.size_bytes for v in values)
        if held >= _LARGE and held >= _SHARE * arguments:
            found.append(_finding(case, pattern, values, held))
    return found


def _finding(case: Case, pattern: str, values: list[Value], held: int) -> Finding:
    names = list(dict.fromkeys(owner(v.name) for v in values))
    parameters = {v.name: v for v in values if v.role == "parameter"}
    others = sorted({v.role for v in values} - {"parameter"})
    axes = case.fsdp_axes or case.data_axes
    large = max(values, key=lambda v: v.size_bytes)
    of_split = {n: case.values[n] for n in names if n in case.values}
    ways = case.size(axes) if axes else 1
    fix = _fix(pattern, parameters, axes, ways)
    state = ""
    if parameters and others:
        state = f" with its {' and '.join(others)} state"
    why = [f"{large.name} {split_words(large)}: no spec names it"]
    if not parameters and large.role == "optimizer" and names[0] in of_split:
        why.append(f"its parameter {names[0]} {split_words(of_split[names[0]])}")
    elif case.weight_axes:
        why.append(f"other parameters are split over {over(sorted(case.weight_axes))}")
    return Finding(
        kind="large-replicated",
        severity="problem" if case.weight_axes and fix else "note",
        where=pattern,
        what=f"every device holds all of {several(names)}{state}",
        why=tuple(why),
        wanted=False,
        tensors=tuple(v.name for v in sorted(values, key=lambda v: -v.size_bytes)),
        axes=axes,
        held_bytes=held,
        fix=fix,
    )


def _fix(
    pattern: str, parameters: dict[str, Value], axes: tuple[str, ...], ways: int
) -> Fix | None:
    specs: dict[str, Spec] = {}
    for name, value in parameters.items():
        own = layer_dims(name, value.shape)
        dims = [d for d in own if value.shape[d] % ways == 0]
        if ways < 2 or not dims:
            return None
        largest = max(dims, key=lambda d: value.shape[d])
        entry = axes[0] if len(axes) == 1 else axes
        specs[name] = tuple(
            entry if d == largest else None for d in range(len(value.shape))
        )
    if not specs:
        return None
    spec = plan_spec(*next(iter(specs.items())))
    return Fix(
        text=f"split {pattern} over {over(axes)}",
        code=f'plan = plan | spmd.Plan({{"{pattern}": {spec_code(spec)}}})',
        place="before spmd.shard_module(model, mesh, plan)",
        change=Change(inputs=tuple(specs.items())),
        parameters=specs,
    )
