"""Many small collectives, whose start costs more than what they move."""

from __future__ import annotations

from collections import defaultdict

from profiling._collectives.collective import Collective
from profiling._findings.case import Case
from profiling._findings.finding import Change, Finding, Fix
from profiling._findings.sums import cost_of
from profiling._findings.weights import without
from profiling._findings.why import over, pattern_of, plan_spec, several, spec_code

_MANY, _SMALL, _SHARE = 16, 256 * 1024, 0.05
_LAYER = 1 << 20
"""Bytes of a weight up to which every device may as well hold it."""


def many_small(case: Case) -> list[Finding]:
    """Find many collectives of one kind over the same axes that move little.

    Args:
        case: The step.

    Returns:
        A note for each kind and set of axes.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[Collective]] = defaultdict(list)
    for collective in case.schedule.collectives:
        if collective.wire_bytes < _SMALL:
            groups[collective.kind, collective.axes].append(collective)
    found = []
    for (kind, axes), own in groups.items():
        num = sum(c.num_runs for c in own)
        exposed = sum(c.exposed_s or 0.0 for c in own)
        if num >= _MANY and exposed >= _SHARE * (case.schedule.step_s or 0.0):
            found.append(_finding(case, kind, axes, own, num))
    return found


def _finding(
    case: Case, kind: str, axes: tuple[str, ...], own: list[Collective], num: int
) -> Finding:
    moved = sum(c.step_wire_bytes for c in own)
    return Finding(
        kind="many-small",
        severity="note",
        where=f"{kind} over {over(axes)}",
        what=f"{num} times {kind} over {over(axes)}, {moved // num} bytes each",
        why=(
            "each takes its latency whatever it moves, and this little takes no longer "
            "than that",
            "they wait for each other's results, or differ in shape and dtype, so the"
            " compiler did not join them",
        ),
        wanted=True,
        fix=_kept_whole(case, axes, own),
        **cost_of(own),
    )


def _kept_whole(case: Case, axes: tuple[str, ...], own: list[Collective]) -> Fix | None:
    """Split the weights of these layers less far, where they are as small as that."""
    moved = {m.tensor for c in own for m in c.moved}
    modules = {m.module for c in own for m in c.moved}
    moved |= {name for op, name in case.forward_dots if op.scope.module in modules}
    patterns = {pattern_of(name) for name in moved if name}  # and those like them
    specs = {
        name: without(value.spec, axes)
        for name, value in case.values.items()
        if pattern_of(name) in patterns and value.role == "parameter" and value.spec
    }
    specs = {n: s for n, s in specs.items() if s != case.values[n].spec}
    if not specs or any(case.values[n].size_bytes > _LAYER for n in specs):
        return None
    lines = {pattern_of(n): plan_spec(n, s) for n, s in specs.items()}
    said = ", ".join(f'"{p}": {spec_code(s)}' for p, s in lines.items())
    return Fix(
        text=f"keep {several(lines)} whole over {over(axes)}",
        code=f"plan = spmd.Plan({{{said}}}) | plan",
        place="before spmd.shard_module(model, mesh, plan)",
        change=Change(inputs=tuple(specs.items())),
        parameters=specs,
    )
