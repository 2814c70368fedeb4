"""How often each computation runs in one step: loops, branches, calls and fusions.

XLA writes a loop's trip count where a pass has found one. A TPU's windowed einsum has
none, so it is worked out: the loop's counters are followed from their first values
until the condition is false.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from profiling._hlo.module import Computation, Instruction, Module
from profiling._hlo.small_numbers import Budget, Element, Unknown, evaluate

MAX_TRIPS = 10_000
"""A loop that has not ended by then has no trip count."""

_KNOWN = re.compile(r'"known_trip_count"\s*:\s*(\{[^{}]*\})')
_UPDATES = ("async-update", "async-done")


@dataclass(frozen=True, slots=True)
class Executions:
    """How often something runs in one step.

    Attributes:
        times: The count; where it is not exact, a loop without a trip count counts one
            trip and each branch of a conditional counts as taken.
        doubt: Why it is not exact; empty when it is.
    """

    times: int
    doubt: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether the count is certain."""
        return not self.doubt


@dataclass(frozen=True, slots=True)
class Loop:
    """One `while`.

    Attributes:
        instruction: The while.
        computation: Name of the computation it is in.
        body: Name of its body.
        condition: Name of its condition.
        trip_count: How often the body runs; None where neither XLA says so nor the
            counter can be followed.
        is_derived: The trip count was worked out here.
    """

    instruction: Instruction
    computation: str
    body: str
    condition: str
    trip_count: int | None
    is_derived: bool


def loops(module: Module) -> tuple[Loop, ...]:
    """Find every loop of a module.

    Args:
        module: Any module.

    Returns:
        Loops, callees before callers.
    """
    found = []
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "while" and len(instruction.called) == 2:
                found.append(_loop(module, computation, instruction))
    return tuple(found)


def executions(module: Module) -> Mapping[str, Executions]:
    """Count how often each computation runs in one step.

    A computation that runs once for each element of something (`to_apply` of a reduce)
    counts as often as the instruction that uses it.

    Args:
        module: Any module.

    Returns:
        By name of the computation; one that nothing calls runs zero times.
    """
    trips = {loop.instruction: loop for loop in loops(module)}
    times = dict.fromkeys((c.name for c in module.computations), 0)
    doubts: dict[str, str] = {}
    times[module.entry.name] = 1
    for computation in _callers_first(module):
        if not times[computation.name]:
            continue
        doubt = doubts.get(computation.name, "")
        for instruction in computation.instructions:
            if not instruction.called or instruction.opcode in _UPDATES:
                continue
            for i, name in enumerate(instruction.called):
                factor, own = _factor(instruction, i, trips.get(instruction))
                times[name] += times[computation.name] * factor
                if own or doubt:
                    doubts.setdefault(name, own or doubt)
    return {
        name: Executions(count, doubts.get(name, "")) for name, count in times.items()
    }


def _factor(instruction: Instruction, index: int, loop: Loop | None) -> tuple[int, str]:
    """How often one run of the caller runs the callee, and what is doubtful there."""
    if loop is not None:
        if loop.trip_count is None:
            return 1, f"the loop {instruction.name} has no trip count that can be found"
        return loop.trip_count + (index == 1), ""
    if instruction.opcode == "conditional":
        return 1, f"the conditional {instruction.name} may not take this branch"
    return 1, ""


def _callers_first(module: Module) -> list[Computation]:
    """Each computation after all that call it; a cycle, which XLA never has, is cut."""
    order: list[Computation] = []
    seen = {module.entry.name}
    stack = [(module.entry, iter(_callees(module.entry)))]
    while stack:
        computation, rest = stack[-1]
        name = next((n for n in rest if n not in seen), None)
        if name is None:
            order.append(computation)
            stack.pop()
            continue
        seen.add(name)
        callee = module.computation(name)
        stack.append((callee, iter(_callees(callee))))
    return order[::-1]


def _callees(computation: Computation) -> dict[str, None]:
    return {name: None for i in computation.instructions for name in i.called}


def _loop(module: Module, computation: Computation, instruction: Instruction) -> Loop:
    body, condition = instruction.called
    known = _known(instruction.attributes.backend_config)
    derived = None
    if known is None:
        derived = _derived(module, computation, instruction)
    trip_count = derived if known is None else known
    return Loop(
        instruction, computation.name, body, condition, trip_count, derived is not None
    )


def _known(backend_config: str) -> int | None:
    """From ``{"known_trip_count":{"n":"4"}}``."""
    match = _KNOWN.search(backend_config)
    if match is None:
        return None
    try:
        count = int(json.loads(match[1])["n"])
    except (ValueError, KeyError, TypeError):
        return None
    return count if count >= 0 else None


def _derived(module: Module, around: Computation, loop: Instruction) -> int | None:
    """Run the loop on its counters alone.

    Which elements of the state are counters is found on the way: the condition asks for
    some, the body's new values of those may ask for more.
    """
    body = module.computation(loop.called[0])
    condition = module.computation(loop.called[1])
    budget = Budget(module)
    counters: set[int] = set()
    for _ in range(len(loop.shape.elements) + 1):
        wanted: set[int] = set()
        try:
            first = {
                i: _first(budget, module, around, loop, i) for i in sorted(counters)
            }
            return _run(budget, first, body, condition, counters, wanted)
        except Unknown:
            if not wanted - counters:
                return None
            counters |= wanted
    return None


def _run(
    budget: Budget,
    state: dict[int, int],
    body: Computation,
    condition: Computation,
    counters: set[int],
    wanted: set[int],
) -> int:
    for trips in range(MAX_TRIPS):
        whole = (Element(state, wanted),)
        if not evaluate(budget, condition.root, whole):
            return trips
        following = {i: _next(budget, body, i, whole) for i in counters}
        if following == state:
            raise Unknown  # it would never end
        state = following
    raise Unknown


def _first(
    budget: Budget, module: Module, around: Computation, loop: Instruction, index: int
) -> int:
    """A counter's first value, from the while's operand."""
    source = loop.operands[0]
    while source.opcode in ("copy", "opt-barrier", "bitcast"):
        source = source.operands[0]
    if source.opcode != "tuple" or index >= len(source.operands):
        raise Unknown
    return _number(evaluate(budget, _given(module, around, source.operands[index]), ()))


def _given(module: Module, inside: Computation, value: Instruction) -> Instruction:
    """What a parameter is where its computation is called in one place only.

    Before it is compiled a loop may lie in a function, which gets its first counter.
    """
    for _ in module.computations:
        if value.opcode != "parameter":
            break
        calls = [
            (computation, instruction)
            for computation in module.computations
            for instruction in computation.instructions
            if inside.name in instruction.called
        ]
        if len(calls) != 1 or calls[0][1].opcode != "call":
            break
        inside, call = calls[0]
        value = call.operands[value.attributes.parameter]
    return value


def _next(budget: Budget, body: Computation, index: int, state: tuple[Element]) -> int:
    root = body.root
    if root.opcode != "tuple" or index >= len(root.operands):
        raise Unknown
    return _number(evaluate(budget, root.operands[index], state))


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise Unknown
    return value
