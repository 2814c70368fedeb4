"""Collectives that nothing runs beside, and what is in the way."""

from __future__ import annotations

from profiling._collectives.collective import Collective
from profiling._findings.case import Case
from profiling._findings.finding import Finding, Fix
from profiling._findings.fix_flags import overlap_fixes
from profiling._findings.sums import cost_of
from profiling._findings.why import several
from profiling._hlo.module import Computation, Instruction
from profiling._report.show_words import seconds_text

_SHARE, _ALONE = 0.05, 0.5


def synchronous(case: Case) -> list[Finding]:
    """Find collectives that compute waits for, by what keeps them from being hidden.

    Args:
        case: The step.

    Returns:
        At most a note for those that wait for data, and one for those that only stand
        in the wrong place.
    """
    step = case.schedule.step_s or 0.0
    waited = [
        c
        for c in case.schedule.collectives
        if (c.exposed_s or 0.0) > _ALONE * (c.total_s or 0.0)
    ]
    if sum(c.exposed_s or 0.0 for c in waited) < _SHARE * step or not step:
        return []
    beside = _Beside(case)
    free = [c for c in waited if beside.seconds(c) > 0.5 * (c.exposed_s or 0.0)]
    bound = [c for c in waited if c not in free]
    found = []
    if _long(free, step):
        found.append(_scheduling(case, free, beside))
    if _long(bound, step):
        found.append(_data(case, bound, beside))
    return found


def _long(collectives: list[Collective], step: float) -> bool:
    return sum(c.exposed_s or 0.0 for c in collectives) >= _SHARE * step


def _scheduling(case: Case, free: list[Collective], beside: _Beside) -> Finding:
    first = max(free, key=lambda c: c.exposed_s or 0.0)
    fix, others = _fixes(case)
    return Finding(
        kind="synchronous",
        severity="note",
        where="scheduling",
        what=(
            f"compute waits for {several(c.name for c in free)} though there is other "
            f"work"
        ),
        why=(
            f"{seconds_text(beside.seconds(first))} of matmuls neither feed "
            f"{first.name} nor need it",
            "in the compiler's order they do not stand between its start and its end",
        ),
        wanted=True,
        fix=fix,
        others=others,
        **cost_of(free),
    )


def _fixes(case: Case) -> tuple[Fix | None, tuple[Fix, ...]]:
    first, *others = overlap_fixes(case) or (None,)
    return first, tuple(fix for fix in others if fix is not None)


def _data(case: Case, bound: list[Collective], beside: _Beside) -> Finding:
    first = max(bound, key=lambda c: c.exposed_s or 0.0)
    together = len(first.moved)
    free = beside.seconds(first)
    most = "all matmuls of its loop" if first.num_runs > 1 else "all matmuls"
    if free:
        most += f" but {seconds_text(free)} of them"
    why = [f"{most} feed {first.name} or need its result"]
    if together > 1:
        why.append(
            f"it moves {together} tensors at once, so the first matmul waits for the "
            f"last of them"
        )
    fix, others = _fixes(case)
    return Finding(
        kind="synchronous",
        severity="note",
        where="data",
        what=(
            f"compute waits for {several(c.name for c in bound)}: nothing else is ready"
        ),
        why=tuple(why),
        wanted=True,
        fix=fix,
        others=others,
        **cost_of(bound),
    )


class _Beside:
    """How much matmul time a collective could run beside: neither before nor after.

    In a loop that is what the body has, over all its trips; the next trip's is not
    counted, since what it needs may be made in this one.
    """

    def __init__(self, case: Case) -> None:
        line = case.schedule.timeline
        self._home = {
            instruction.name: (computation, instruction)
            for computation in case.schedule.module.computations
            for instruction in computation.instructions
        }
        self._matmuls: dict[str, dict[Instruction, float]] = {}
        for event in () if line is None else line.events:
            if event.kind == "matmul" and event.name in self._home:
                computation, instruction = self._home[event.name]
                inside = self._matmuls.setdefault(computation.name, {})
                inside[instruction] = inside.get(instruction, 0.0) + event.duration_s
        self._users: dict[str, dict[Instruction, list[Instruction]]] = {}
        self._known: dict[str, float] = {}

    def seconds(self, collective: Collective) -> float:
        """Seconds of matmuls that do not depend on it, nor it on them."""
        if collective.name not in self._known:
            found = 0.0
            if collective.name in self._home:
                computation, at = self._home[collective.name]
                bound = self._all(computation, at)
                matmuls = self._matmuls.get(computation.name, {})
                found = sum(s for m, s in matmuls.items() if m not in bound)
            self._known[collective.name] = found
        return self._known[collective.name]

    def _all(self, computation: Computation, at: Instruction) -> set[Instruction]:
        """What it needs, itself, and what needs it."""
        if computation.name not in self._users:
            self._users[computation.name] = computation.users()
        users = self._users[computation.name]
        found: set[Instruction] = set()
        for before in (True, False):
            seen, todo = {at}, [at]
            while todo:
                one = todo.pop()
                near = one.operands if before else users.get(one, ())
                todo += [i for i in near if i not in seen]
                seen.update(near)
            found |= seen
        return found
