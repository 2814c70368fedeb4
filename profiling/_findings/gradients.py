"""Gradients that are reduced whole, or more often than once a step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from profiling._collectives.collective import Collective, Moved
from profiling._collectives.step_values import owner
from profiling._findings.case import Case
from profiling._findings.finding import Change, Finding, Fix
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
from spmd._spec import Spec, spec_axes, uneven_dims
from spmd._value import Value


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
        cause = "nothing says that its gradient is split as it is"
    changes = [(op.number, v.spec or ()) for v in values for op in _placed(case, v)]
    spec = spec_code(value.spec or ())
    fix = Fix(
        text=f"split the gradient of {several(v.name for v in values)} as the weight",
        code=(
            f"spmd.mark_sharding({parameter_code(value.name)}, mesh, {spec}, "
            f"grad={spec})"
        ),
        place="where the gradient of the parameter is annotated",
        change=Change(annotations=tuple(changes)),
    )
    cost = cost_of(list(dict.fromkeys(c for c, _ in found)))
    names = {v.name for v in values}
    cost["wire_bytes"] = sum(
        m.wire_bytes * c.num_runs
        for c in dict.fromkeys(c for c, _ in found)
        for m in c.moved
        if m.tensor in names
    )
    much = cost["wire_bytes"] >= _SHARE * max(1, case.schedule.wire_bytes)
    return Finding(
        kind="gradient-all-reduced",
        severity="problem" if placed or (much and not is_cpu) else "note",
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
        fix=fix if placed else None,
        **cost,
    )


_SHARE = 0.1
"""Of the bytes on the wire, from which on it is a problem that nobody caused."""


def _placed(case: Case, value: Value) -> list[StepOp]:
    """Annotations of a parameter's gradient that do not split it as the parameter."""
    whole = [
        op
        for op in case.annotations
        if op.shape == value.shape and op.sharding == "{replicated}"
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


def gradients_per_micro_batch(case: Case) -> list[Finding]:
    """Find gradients that are reduced for each part of the batch.

    Args:
        case: The step.

    Returns:
        One finding, or none.
    """
    times: Counter[tuple[str, tuple[str, ...]]] = Counter()
    own: dict[str, list[tuple[Collective, Moved]]] = defaultdict(list)
    for collective in case.schedule.collectives:
        for moved in collective.moved:
            if moved.role == "gradient reduction" and moved.tensor:
                name = owner(moved.tensor)
                times[name, collective.axes] += collective.num_runs
                own[name].append((collective, moved))
    parts = _micro_batches(case)
    names = [n for (n, _), count in times.items() if count > 1 and n in parts]
    if not names:
        return []
    collectives = list(dict.fromkeys(c for n in names for c, _ in own[n]))
    most = max(times[n, c.axes] for n in names for c, _ in own[n])
    num = max(parts[n] for n in names)
    why = [
        f"{names[0]} is used {num} times in the forward pass, each time with rows of "
        f"its own, so each backward() makes a gradient of it",
        "a product leaves each device a part of a sum, and the partitioner reduces it "
        "where it is made; the compiler can add up parts first only where nothing but "
        "the sum stands between",
    ]
    casts = [c for n in names for c in _casts(case, case.values[n])]
    if casts:
        why.append(
            f"a cast to {casts[0].dtype} stands between: the gradient is reduced in "
            f"{casts[0].operands[0].dtype} and kept in {casts[0].dtype}"
        )
    is_cpu = _is_cpu(case)
    if is_cpu:
        why.append("the CPU's compiler never adds up parts: GPUs' and TPUs' do")
    marks = None if is_cpu else _marked_where_made(case, names)
    one = Fix(
        text="run the micro-batches as one batch, if it fits in memory",
        code="loss = model(torch.cat(batches)).mean(); loss.backward()",
        place="in place of the loop over micro-batches",
    )
    return [
        Finding(
            kind="gradient-per-micro-batch",
            severity="note" if is_cpu else "problem",
            where=several(dict.fromkeys(pattern_of(n) for n in names)),
            what=(
                f"gradients of {several(names)} are reduced {most} times in a step of "
                f"{num} micro-batches; once would do"
            ),
            why=tuple(why),
            wanted=False,
            fix=marks or one,
            others=() if marks is None else (one,),
            **cost_of(collectives),
        )
    ]


def _marked_where_made(case: Case, names: Sequence[str]) -> Fix | None:
    """Split each gradient as its weight before it is added to the others."""
    values: list[tuple[int, Spec]] = []
    for name in names:
        value = case.values[name]
        for op in weight_gradients(case, value):
            made = _last(case, op)
            if made.shape == value.shape and value.spec is not None:
                values.append((made.number, value.spec))
    if not values:
        return None
    if len(names) == 1:
        spec = spec_code(case.values[names[0]].spec or ())
        name = parameter_code(names[0])
        code = f"spmd.mark_sharding({name}, mesh, {spec}, grad={spec})"
    else:
        code = (
            "for p in model.parameters(): s = spmd.get_sharding(p).spec; "
            "spmd.mark_sharding(p, mesh, s, grad=s)"
        )
    return Fix(
        text=f"split the gradient of {several(names)} where it is made",
        code=code,
        place="after spmd.shard_module(model, mesh, plan)",
        change=Change(values=tuple(values)),
    )


def _last(case: Case, op: StepOp) -> StepOp:
    """A gradient as it is added: cast and transposed, and annotated by nobody yet."""
    while True:
        users = case.ops.users(op)
        if len(users) != 1 or not users[0].passes or users[0].sharding:
            return op
        (op,) = users


def _casts(case: Case, value: Value) -> list[StepOp]:
    """Casts to a wider dtype between a weight's gradients and their sum."""
    found = []
    for made in weight_gradients(case, value):
        op = _last(case, made)
        while op is not made:
            if op.name == "convert":
                found.append(op)
            op = op.operands[0]
    return found


def _is_cpu(case: Case) -> bool:
    target = case.schedule.target
    return target is not None and target.kind == "cpu"


def _micro_batches(case: Case) -> dict[str, int]:
    """Uses of each weight that do not read each other's results."""
    uses: dict[str, list[StepOp]] = defaultdict(list)
    for op, name in case.forward_dots:
        uses[name].append(op)
    return {
        name: len(found)
        for name, found in uses.items()
        if len(found) > 1 and not _reads(found[1], found[0])
    }


def _reads(op: StepOp, other: StepOp) -> bool:
    """Whether a value is computed from another."""
    seen, todo = {op.number}, [op]
    while todo:
        for operand in todo.pop().operands:
            if operand is other:
                return True
            if operand.number > other.number and operand.number not in seen:
                seen.add(operand.number)
                todo.append(operand)
    return False
