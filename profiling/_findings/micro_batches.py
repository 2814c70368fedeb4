"""Gradients that are reduced for each micro-batch, where once a step would do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from profiling._collectives.collective import Collective, Moved
from profiling._collectives.step_values import owner
from profiling._findings.case import Case
from profiling._findings.finding import Finding
from profiling._findings.gradient_parts import GradientParts, Part
from profiling._findings.micro_batch_fixes import Parts, micro_batch_fixes
from profiling._findings.sums import cost_of
from profiling._findings.why import pattern_of, several
from profiling._step.ops import StepOp

_LITTLE = 0.01
"""Of a step's bytes and of its time, below which it is only a note."""

_ADVICE = (
    "run the micro-batches as one batch if it fits in memory, with rematerialisation "
    "if it nearly does: loss = model(torch.cat(batches)).mean(); loss.backward()"
)

_OF_LOOPS = (
    "where the loop runs over micro-batches, run them as one batch if it fits in memory"
)

_Reduced = list[tuple[Collective, Moved]]


def gradients_per_micro_batch(case: Case) -> list[Finding]:
    """Find gradients that are reduced for each part of the batch.

    Args:
        case: The step.

    Returns:
        A finding for weights of matmuls, one for other parameters, and one for what
        is added up in loops.
    """
    times: Counter[tuple[str, tuple[str, ...]]] = Counter()
    own: dict[str, _Reduced] = defaultdict(list)
    for collective in case.schedule.collectives:
        for moved in collective.moved:
            if moved.role == "gradient reduction" and moved.tensor:
                name = owner(moved.tensor)
                times[name, collective.axes] += collective.num_runs
                own[name].append((collective, moved))
    most: dict[str, int] = {}
    for (name, _), count in times.items():
        if count > 1 and name in case.values:
            most[name] = max(count, most.get(name, 0))
    parts = GradientParts(case)
    groups: dict[str, dict[str, tuple[Part, ...]]] = defaultdict(dict)
    nums: dict[str, int] = {}
    for name in most:
        found = parts.of(name)
        loops = [p for p in found if p.loop is not None]
        uses = 0 if loops else num_micro_batches(case, name)
        if loops:
            groups["loop"][name], nums[name] = tuple(loops), most[name]
        elif uses > 1 and len(found) > 1:
            is_matmul = all(p.made.is_dot for p in found)
            groups["matmul" if is_matmul else "other"][name] = found
            nums[name] = uses
    return [_finding(case, own, most, nums, found) for found in groups.values()]


def num_micro_batches(case: Case, name: str) -> int:
    """How many uses of a parameter read no other use's result.

    Args:
        case: The step.
        name: The parameter's.

    Returns:
        1 where a layer is applied several times, or a table is tied to a head.
    """
    value = case.values[name]
    (argument,) = (
        op
        for op, v in zip(case.ops.arguments, case.program.inputs, strict=True)
        if v is value
    )
    uses = {op.number: op for op in _uses(case, argument)}
    return sum(not _reads_any(op, uses) for op in uses.values())


def _uses(case: Case, argument: StepOp) -> list[StepOp]:
    """What the forward pass computes of a parameter and something else."""
    found, todo = [], [argument]
    while todo:
        for user in case.ops.users(todo.pop()):
            if user.scope.phase == "update":
                continue
            if len(set(user.operands)) == 1 and not user.is_dot:
                todo.append(user)  # cast, transposed, annotated or made larger
            elif user.scope.phase in ("forward", "") and user.name != "func.return":
                found.append(user)
    return found


def _reads_any(op: StepOp, others: dict[int, StepOp]) -> bool:
    """Whether a value is computed from any of others."""
    first = min(others)
    seen, todo = {op.number}, [op]
    while todo:
        for operand in todo.pop().operands:
            if operand.number in others:
                return True
            if operand.number > first and operand.number not in seen:
                seen.add(operand.number)
                todo.append(operand)
    return False


def _finding(
    case: Case,
    own: dict[str, _Reduced],
    most: dict[str, int],
    nums: dict[str, int],
    parts: Parts,
) -> Finding:
    names = list(parts)
    num = max(nums[n] for n in names)
    is_loop = any(p.loop for found in parts.values() for p in found)
    whole = f"a loop of {num} runs" if is_loop else f"a step of {num} micro-batches"
    casts = [c for found in parts.values() for p in found for c in p.casts]
    is_cpu = case.schedule.target is not None and case.schedule.target.kind == "cpu"
    cost = cost_of(list(dict.fromkeys(c for n in names for c, _ in own[n])))
    cost["tensors"] = tuple(names)
    cost["wire_bytes"] = sum(
        m.wire_bytes * c.num_runs for n in names for c, m in own[n]
    )
    if cost["exposed_s"] is not None:  # of what moves others too, by bytes
        cost["exposed_s"] = sum(
            (c.exposed_s or 0.0) * m.wire_bytes / max(1, c.wire_bytes)
            for n in names
            for c, m in own[n]
        )
    fixes = [] if is_cpu else micro_batch_fixes(case, parts)
    return Finding(
        kind="gradient-per-micro-batch",
        severity="note" if is_cpu or _is_little(case, cost) else "problem",
        where=several(dict.fromkeys(pattern_of(n) for n in names)),
        what=(
            f"gradients of {several(names)} are reduced "
            f"{max(most[n] for n in names)} times in {whole}; once would do"
        ),
        why=_why(names[0], num, is_loop, casts, is_cpu),
        wanted=False,
        fix=fixes[0] if fixes else None,
        others=tuple(fixes[1:]),
        advice=_OF_LOOPS if is_loop else _ADVICE,
        **cost,
    )


def _is_little(case: Case, cost: dict[str, object]) -> bool:
    exposed, step_s = cost["exposed_s"], case.schedule.step_s
    is_short = (
        not isinstance(exposed, float) or not step_s or exposed < _LITTLE * step_s
    )
    wire = cost["wire_bytes"]
    few = isinstance(wire, int) and wire < _LITTLE * case.schedule.wire_bytes
    return few and is_short


def _why(
    name: str, num: int, is_loop: bool, casts: Sequence[StepOp], is_cpu: bool
) -> tuple[str, ...]:
    if is_loop:
        why = [
            f"a loop of {num} runs makes a gradient of {name} in each and adds it to "
            f"what it carries",
            "what is carried is split as the weight, so each run's gradient is reduced "
            "before it is added",
        ]
    else:
        why = [
            f"{name} is used {num} times in the forward pass, each time with rows of "
            f"its own, so each backward() makes a gradient of it",
            "a product leaves each device a part of a sum, and the partitioner reduces "
            "it where it is made; the compiler can add up parts first only where "
            "nothing but the sum stands between",
        ]
    if casts:
        kept, made = casts[0].dtype, casts[-1].operands[0].dtype
        why.append(
            f"a cast to {kept} stands between: the gradient is reduced in {made} and "
            f"kept in {kept}"
            if made != kept
            else f"it is cast to {casts[-1].dtype} and back to {kept} in between"
        )
    if is_cpu:
        why.append("the CPU's compiler never adds up parts: GPUs' and TPUs' do")
    return tuple(why)
