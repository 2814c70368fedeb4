"""Many small collectives, whose start costs more than what they move."""

from __future__ import annotations

from collections import defaultdict

from profiling._case import Case
from profiling._collective import Collective
from profiling._finding import Finding
from profiling._sums import cost_of
from profiling._why import over

_MANY, _SMALL, _SHARE = 16, 256 * 1024, 0.05


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
            found.append(_finding(kind, axes, own, num))
    return found


def _finding(
    kind: str, axes: tuple[str, ...], own: list[Collective], num: int
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
        **cost_of(own),
    )
