"""Work out whole numbers that a module computes from constants: loop counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from profiling._hlo.module import Instruction, Module

Value: TypeAlias = "int | tuple[Value, ...] | Element | _Lazy"


class Unknown(Exception):
    """The value depends on data."""


@dataclass(frozen=True, slots=True)
class Element:
    """The loop's state as a whole; `get-tuple-element` takes a number out of it."""

    values: Mapping[int, int]
    wanted: set[int]

    def __getitem__(self, index: int) -> int:
        if index not in self.values:
            self.wanted.add(index)
            raise Unknown
        return self.values[index]


_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}
_SAME = frozenset(
    ("copy", "bitcast", "reshape", "convert", "opt-barrier", "broadcast", "copy-done")
)
_DEEPEST = 100


@dataclass(slots=True)
class Budget:
    """A module, and how many more instructions of it may be worked out.

    Without an end, ``b = a + a``, ``c = b + b`` and so on would take for ever.
    """

    module: Module
    left: int = 300_000


def evaluate(
    budget: Budget,
    instruction: Instruction,
    parameters: tuple[Value, ...],
    depth: int = 0,
) -> Value:
    """The number an instruction gives.

    Only scalars, and tuples of them, of which other elements may be unknown.

    Args:
        budget: Where it is, and how much may be done.
        instruction: What to work out.
        parameters: Values of its computation's parameters.
        depth: How deep the expression is already.

    Returns:
        The value.

    Raises:
        Unknown: It depends on data, or on what is not a scalar.
    """
    budget.left -= 1
    if depth > _DEEPEST or budget.left < 0:
        raise Unknown
    opcode, operands = instruction.opcode, instruction.operands

    def value(index: int) -> Value:
        return evaluate(budget, operands[index], parameters, depth + 1)

    def number(index: int) -> int:
        found = value(index)
        if not isinstance(found, int):
            raise Unknown
        return found

    if opcode == "constant":
        return _constant(instruction)
    if opcode == "parameter":
        return _parameter(parameters, instruction.attributes.parameter)
    if not operands or (instruction.shape.dims and instruction.shape.num_elements > 1):
        raise Unknown
    if opcode == "get-tuple-element":
        return _element(
            budget, operands[0], instruction.attributes.tuple_index, parameters, depth
        )
    if opcode in _SAME or (opcode == "copy-start"):
        return value(0)
    if opcode in _BINARY and len(operands) == 2:
        return _BINARY[opcode](number(0), number(1))
    if opcode == "compare" and instruction.attributes.direction in _COMPARE:
        return int(_COMPARE[instruction.attributes.direction](number(0), number(1)))
    if opcode == "select":
        return value(1) if number(0) else value(2)
    if opcode == "not" and instruction.shape.dtype == "pred":
        return 1 - number(0)
    if opcode == "negate":
        return -number(0)
    if opcode in ("fusion", "call") and instruction.called:
        return _call(budget, instruction, None, parameters, depth)
    raise Unknown


def _constant(instruction: Instruction) -> int:
    found = instruction.attributes.literal
    if len(found) != 1:
        raise Unknown
    return found[0]


def _parameter(parameters: tuple[Value, ...], index: int) -> Value:
    if not 0 <= index < len(parameters):
        raise Unknown
    found = parameters[index]
    return found() if isinstance(found, _Lazy) else found


def _element(
    budget: Budget,
    source: Instruction,
    index: int,
    parameters: tuple[Value, ...],
    depth: int,
) -> Value:
    if source.opcode == "tuple" and 0 <= index < len(source.operands):
        return evaluate(budget, source.operands[index], parameters, depth + 1)
    if source.opcode in ("fusion", "call") and source.called:
        return _call(budget, source, index, parameters, depth)
    found = evaluate(budget, source, parameters, depth + 1)
    if isinstance(found, Element):
        return found[index]
    if isinstance(found, tuple) and 0 <= index < len(found):
        return found[index]
    raise Unknown


def _call(
    budget: Budget,
    caller: Instruction,
    index: int | None,
    parameters: tuple[Value, ...],
    depth: int,
) -> Value:
    """Value of a fusion, or of one element of it; operands are worked out if used."""
    lazy = tuple(
        _Lazy(budget, operand, parameters, depth + 1) for operand in caller.operands
    )
    root = budget.module.computation(caller.called[0]).root
    if index is None:
        return evaluate(budget, root, lazy, depth + 1)
    return _element(budget, root, index, lazy, depth + 1)


@dataclass(frozen=True, slots=True)
class _Lazy:
    budget: Budget
    instruction: Instruction
    parameters: tuple[Value, ...]
    depth: int

    def __call__(self) -> Value:
        return evaluate(self.budget, self.instruction, self.parameters, self.depth)
