"""Activations that move over the axis whose weights should be gathered instead."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from profiling._collectives.collective import Collective
from profiling._collectives.splits import Split
from profiling._findings.case import Case
from profiling._findings.finding import Finding
from profiling._findings.fix_outputs import Root, outputs_fix
from profiling._findings.sums import cost_of
from profiling._findings.why import (
    over,
    pattern_of,
    several,
    split_words,
)
from profiling._step.ops import StepOp
from spmd._meshes.spec import entry_axes
from spmd._program.value import Value


def activations_gathered(case: Case) -> list[Finding]:
    """Find them, by the matmul that begins it.

    Args:
        case: The step.

    Returns:
        One finding for each matmul, or for those of like layers together.
    """
    if not case.fsdp_axes:
        return []
    moving = [c for c in case.moving if set(c.axes) & set(case.fsdp_axes)]
    if not moving:
        return []
    runs = _runs(roots(case))
    if not runs:
        return []
    shares = _shares(case, moving, [r for run in runs for r in run])
    found = []
    for run in runs:
        own = [c for r in run for c in shares[r.op]]
        if own:
            found.append(_finding(case, run, own))
    return found


def _runs(found: Sequence[Root | None]) -> list[list[Root]]:
    """Join matmuls that follow each other, and those of like layers.

    Rows that are lost at one stay so at the next until a matmul has them again, so only
    annotations of all of them together can be worth it.
    """
    together: dict[str, set[str]] = {}
    last: str | None = None
    for root in found:
        pattern = None if root is None else pattern_of(root.op.scope.module)
        if pattern is not None:
            own = together.setdefault(pattern, {pattern})
            for other in tuple(together.get(last, ()) if last is not None else ()):
                own |= together[other]
            for other in own:
                together[other] = own
        last = pattern
    runs: dict[int, list[Root]] = defaultdict(list)
    for root in found:
        if root is not None:
            runs[id(together[pattern_of(root.op.scope.module)])].append(root)
    return list(runs.values())


def roots(case: Case) -> list[Root | None]:
    """Matmuls whose weight is split over an axis of the batch, and stayed so.

    Args:
        case: The step.

    Returns:
        In the order of the forward pass; None for a matmul whose weight was gathered.
    """
    wanted = case.size(case.data_axes)
    found: list[Root | None] = []
    for op, weight in case.forward_dots:
        split = case.splits.of(op)
        spec = case.values[weight].spec or ()
        mine = {a for entry in spec for a in entry_axes(entry)}
        if split is None or not mine & set(case.fsdp_axes):
            continue
        rows, _ = case.row_dims(op)
        if math.prod(op.shape[d] for d in rows) % wanted:
            continue  # it cannot be split so
        lost = math.prod(split.ways[d] for d in rows) < wanted
        found.append(Root(op, weight, split) if lost else None)
    return found


def _shares(
    case: Case, moving: Sequence[Collective], found: Sequence[Root]
) -> dict[StepOp, list[Collective]]:
    """Give each collective to the matmul that it serves, or that came before."""
    first: dict[str, int] = {}
    for op, _ in case.forward_dots:
        first.setdefault(op.scope.module, op.number)
    shares: dict[StepOp, list[Collective]] = {r.op: [] for r in found}
    for collective in moving:
        at = first.get(collective.module)
        own = [r for r in found if r.op.scope.module == collective.module]
        before = [r for r in found if at is not None and r.op.number <= at]
        root = own[0] if own else before[-1] if before else found[0]
        shares[root.op].append(collective)
    return shares


def _finding(case: Case, group: Sequence[Root], own: Sequence[Collective]) -> Finding:
    root = group[0]
    names = (pattern_of(r.op.scope.module) or "the model" for r in group)
    pattern = several(dict.fromkeys(names))
    module = root.op.scope.module
    what = (
        f"activations move over {over(case.fsdp_axes)} around {pattern}, where its "
        f"weight was to be gathered"
    )
    return Finding(
        kind="activation-gathered",
        severity="problem",
        where=pattern,
        what=what,
        why=_why(case, root),
        wanted=False,
        fix=outputs_fix(case, pattern, group),
        **cost_of(own, module=module),
    )


def _why(case: Case, root: Root) -> tuple[str, ...]:
    op, split = root.op, root.split
    module, weight = op.scope.module or "the model", case.values[root.weight]
    _, columns = case.row_dims(op)
    batch = _batch_of(case, op)
    lines = [
        f"{batch.name} {split_words(batch)}",
        f"{weight.name} {split_words(weight)}, which also splits the batch, so the "
        f"weight is to be gathered for use",
    ]
    cut = [d for d in columns if split.ways[d] > 1]
    if cut:
        result = f"its features (dim {cut[0]}) split {split.ways[cut[0]]} ways"
    elif split.sums > 1:
        result = f"parts of sums, over features that are split {split.sums} ways"
    else:
        result = "the same on several devices"
    lines.append(
        f"nothing says how the output of {module} {list(op.shape)} is split, so the "
        f"partitioner left the weight where it is and made {result}: a device computes "
        f"{list(split.piece)} of rows that are gathered for it"
    )
    after = _next(case, op)
    if after is not None:
        name, there = after
        lines.append(
            f"{name} needs its rows split as the batch is"
            if there is None
            else f"{name} computes {list(there.piece)} on a device, so what {module} "
            f"gave is moved over {over(case.fsdp_axes)} again"
        )
    return tuple(lines)


def _batch_of(case: Case, op: StepOp) -> Value:
    """The input that a matmul is given, or else any that holds the batch."""
    given = case.ops.input_behind(case.activation_of(op), ("input",))
    return next(v for v in case.batch if v.spec and given in ("", v.name))


def _next(case: Case, op: StepOp) -> tuple[str, Split | None] | None:
    """The next matmul with a weight that reads a result, and how it is split."""
    seen, todo = {op}, [op]
    dots = {d: w for d, w in case.forward_dots}
    while todo:
        for user in case.ops.users(todo.pop(0)):
            if user in dots:
                return user.scope.module or user.op_name, case.splits.of(user)
            if (
                user not in seen
                and user.scope.phase in ("forward", "")
                and (len(seen) < _FAR)
            ):
                seen.add(user)
                todo.append(user)
    return None


_FAR = 200
