"""Weights that are gathered more often than the two passes need."""

from __future__ import annotations

from collections import defaultdict

from profiling._collectives.collective import Collective, Moved
from profiling._findings.case import Case
from profiling._findings.finding import Change, Finding, Fix
from profiling._findings.micro_batches import num_micro_batches
from profiling._findings.sums import cost_of
from profiling._findings.why import over, parameter_code, pattern_of, several, spec_code
from spmd._meshes.spec import Spec, SpecEntry, entry_axes

_NEEDED = 2
"""Once forward, once backward."""

_APART = (
    "the uses read nothing of each other, as micro-batches: that each gathers it is "
    "what keeps it split over the step, and memory decides which is better"
)


def weights_gathered_again(case: Case) -> list[Finding]:
    """Find weights that are gathered more than twice in a step.

    Args:
        case: The step.

    Returns:
        For each set of axes a problem for what is used by turns, and a note for what
        each of several micro-batches uses by itself.
    """
    uses: dict[str, int] = defaultdict(int)
    for _, name in case.forward_dots:
        uses[name] += 1
    gathers: dict[str, list[tuple[Collective, Moved]]] = defaultdict(list)
    for collective in case.schedule.collectives:
        if collective.num_runs != 1:
            continue  # a loop gathers the weights of another layer each time
        for moved in collective.moved:
            if moved.role == "weight gather" and moved.tensor in case.values:
                gathers[moved.tensor].append((collective, moved))
    again = {
        n: found
        for n, found in gathers.items()
        if len(found) > _NEEDED and uses[n] > 1 and _phases_repeat(found)
    }
    groups: dict[tuple[tuple[str, ...], bool], list[str]] = defaultdict(list)
    for name, found in again.items():
        is_apart = num_micro_batches(case, name) == uses[name]
        groups[found[0][0].axes, is_apart].append(name)
    return [
        _finding(case, axes, names, again, uses, is_apart)
        for (axes, is_apart), names in groups.items()
    ]


def _phases_repeat(found: list[tuple[Collective, Moved]]) -> bool:
    phases = [m.phase for _, m in found]
    return len(set(phases)) < len(phases)


def _finding(
    case: Case,
    axes: tuple[str, ...],
    names: list[str],
    again: dict[str, list[tuple[Collective, Moved]]],
    uses: dict[str, int],
    is_apart: bool,
) -> Finding:
    first = names[0]
    why = [
        f"{first} is used {uses[first]} times in the forward pass",
        f"nothing holds it whole in between, so it is gathered over {over(axes)} for "
        f"each use",
    ]
    if is_apart:
        why.append(_APART)
    whole = {n: without(case.values[n].spec or (), axes) for n in names}
    values = tuple((_argument(case, n), spec) for n, spec in whole.items())
    num = max(len(again[n]) for n in names)
    collectives = list(dict.fromkeys(c for n in names for c, _ in again[n]))
    cost = cost_of(collectives)
    cost["wire_bytes"] = sum(m.wire_bytes for n in names for _, m in again[n])
    return Finding(
        kind="weight-gathered-again",
        severity="note" if is_apart else "problem",
        where=several(dict.fromkeys(pattern_of(n) for n in names)),
        what=f"{several(names)} is gathered {num} times in a step; once would do",
        why=tuple(why),
        wanted=False,
        fix=Fix(
            text=f"gather {several(names)} once and use that; it then lives until its "
            f"last use",
            code=(
                f"weight = spmd.mark_sharding({parameter_code(first)} * 1, mesh, "
                f"{spec_code(whole[first])}, grad=None)"
            ),
            place="at the start of the step, and use `weight` each time",
            change=Change(values=values),
        ),
        **cost,
    )


def without(spec: Spec, axes: tuple[str, ...]) -> Spec:
    """A spec with some axes taken out of it.

    Args:
        spec: The spec.
        axes: The axes.

    Returns:
        Another spec of as many dims.

    Example:
        >>> without((("fsdp", "replica"), "tensor"), ("replica", "tensor"))
        ('fsdp', None)
    """

    def kept(entry: SpecEntry) -> SpecEntry:
        left = tuple(a for a in entry_axes(entry) if a not in axes)
        return left if len(left) > 1 else left[0] if left else None

    return tuple(kept(e) for e in spec)


def _argument(case: Case, name: str) -> int:
    return next(
        op.number
        for op, v in zip(case.ops.arguments, case.program.inputs, strict=True)
        if v.name == name
    )
