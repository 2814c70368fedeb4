"""`GradientParts`: what is added up to a parameter's gradient, and where."""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiling._collectives.step_values import owner
from profiling._findings.case import Case
from profiling._step.ops import StepOp
from profiling._step.walk import CARRIED

_SOURCES = ("argument", "constant", "iota", "broadcast_in_dim", "rng_bit_generator")
_MAKERS = ("dot", "dot_general", "convolution", "reduce", "scatter", "gather")


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that adds up a gradient.

    Attributes:
        entered: The sum so far, as a run is given it.
        added: With the run's own gradient.
        left: The sum after the last run.
    """

    entered: StepOp
    added: StepOp
    left: StepOp


@dataclass(frozen=True, slots=True)
class Part:
    """One gradient of a parameter, such as a micro-batch's.

    Attributes:
        made: What computes it, e.g. a matmul or a scatter.
        ready: The same as it is added: cast and transposed.
        loop: The loop whose runs make one each; None outside loops.
    """

    made: StepOp
    ready: StepOp
    loop: Loop | None = None

    @property
    def casts(self) -> tuple[StepOp, ...]:
        """Casts between the two, the last one first."""
        found, op = [], self.ready
        while op is not self.made:
            if op.name == "convert":
                found.append(op)
            op = op.operands[0]
        return tuple(found)

    @property
    def annotations(self) -> tuple[StepOp, ...]:
        """Annotations of it as it is added, before which it is not turned any more."""
        found, op = [], self.ready
        while op is not self.made and op.name not in ("transpose", "reshape"):
            if op.sharding:
                found.append(op)
            op = op.operands[0]
        return tuple(found)


class GradientParts:
    """Looks for what is added up to gradients.

    A parameter's next value, or its gradient where that is what the step gives, is
    followed back through what is computed element by element, the optimizer's formulas
    among it, to what is not.

    Args:
        case: The step.
    """

    def __init__(self, case: Case) -> None:
        self._ops = case.ops
        *_, end = case.ops.ops
        self._results: dict[str, list[StepOp]] = {}
        for value, op in zip(case.program.outputs, end.operands, strict=False):
            if value.role in ("parameter", "gradient"):
                self._results.setdefault(owner(value.name), []).append(op)

    def of(self, name: str) -> tuple[Part, ...]:
        """The gradients that are added up to one.

        Args:
            name: The parameter's.

        Returns:
            In the order in which they are made; those of a loop as one.
        """
        found: dict[int, Part] = {}
        seen: set[int] = set()
        todo = list(self._results.get(name, ()))
        while todo:
            ready = todo.pop()
            if ready.number in seen:
                continue
            seen.add(ready.number)
            made = self._ops.behind(ready)
            if _is_elementwise(made):
                todo += made.operands
            elif made.name == CARRIED:
                part = self._looped(made)
                if part is not None:
                    found[made.number] = part
            elif made.name not in _SOURCES and _same_size(made, ready):
                found[ready.number] = Part(made, ready)
        return tuple(found[number] for number in sorted(found))

    def _looped(self, left: StepOp) -> Part | None:
        """The gradient that each run of a loop adds to what it carries."""
        if len(left.operands) != 2:
            return None
        end, start = left.operands
        added = self._ops.behind(end)
        if added.name != "add" or not added.in_loop:
            return None
        sides = [(o, self._unscaled(o)) for o in added.operands]
        carried = [
            made
            for _, made in sides
            if made.name == CARRIED and made.in_loop and made.operands == (start,)
        ]
        others = [(o, made) for o, made in sides if made not in carried]
        if len(carried) != 1 or len(others) != 1:
            return None
        side, made = others[0]
        if made.name not in _MAKERS:
            return None
        return Part(made, self._ready(side), Loop(carried[0], added, left))

    def _unscaled(self, op: StepOp) -> StepOp:
        return self._ops.behind(self._ready(op))

    def _ready(self, op: StepOp) -> StepOp:
        """A value before it was multiplied by a number, as torch's ``add`` does."""
        while op.name == "multiply":
            values = [o for o in op.operands if not _is_number(o)]
            if len(values) != 1:
                break
            (op,) = values
        return op


def _is_number(op: StepOp) -> bool:
    while op.name in ("broadcast_in_dim", "reshape", "convert"):
        op = op.operands[0]
    return not op.shape


def _is_elementwise(op: StepOp) -> bool:
    """Whether each element of a value is computed from the same of its operands."""
    if op.name in _MAKERS or op.name in _SOURCES or op.name == CARRIED:
        return False
    return bool(op.operands) and all(o.shape in ((), op.shape) for o in op.operands)


def _same_size(one: StepOp, other: StepOp) -> bool:
    return math.prod(one.shape) == math.prod(other.shape)
