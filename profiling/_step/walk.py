"""`walk`: the operations of an open StableHLO step, those of its loops among them.

A function is read where it is called, and a loop's body once. What a loop carries is a
value of its own: a pass-through where the body hands it on as it is, as stacked weights
are, and otherwise something computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ARGUMENT, CARRIED, HELD = "argument", "carried", "held"
"""Names of values that no operation makes: a step's input, what a loop hands from one
run to the next, and what it hands on unchanged."""


@dataclass(slots=True)
class Walked:
    """One operation, or a value that none makes; its place in the list is its number.

    Attributes:
        name: MLIR's, or one of the three names above.
        operands: Numbers of what it reads.
        value: Its first result; None where it has none.
        operation: MLIR's; None where there is none.
        location: MLIR's text.
        in_loop: It stands in the body of a loop.
    """

    name: str
    operands: tuple[int, ...]
    value: Any
    operation: Any | None
    location: str
    in_loop: bool


def walk(main: Any) -> list[Walked]:
    """List what a step computes.

    Args:
        main: MLIR's function, of a module that is open.

    Returns:
        Arguments first, then operations in order.
    """
    found = _Walk(main)
    block = main.regions[0].blocks[0]
    for argument in block.arguments:
        found.add(ARGUMENT, (), argument)
    found.block(block)
    return found.walked


class _Walk:
    def __init__(self, main: Any) -> None:
        self.walked: list[Walked] = []
        self._numbers: dict[Any, int] = {}
        self._depth = 0
        self._main = main
        self._functions = {
            op.operation.attributes["sym_name"].value: op.operation
            for op in main.operation.parent.regions[0].blocks[0].operations
            if op.operation.name == "func.func"
        }

    def add(
        self,
        name: str,
        operands: tuple[int, ...],
        value: Any,
        operation: Any = None,
        location: str = "",
    ) -> int:
        number = len(self.walked)
        made = Walked(name, operands, value, operation, location, self._depth > 0)
        self.walked.append(made)
        if value is not None:
            self._numbers[value] = number
        return number

    def block(self, block: Any) -> tuple[int, ...]:
        """Read a block; what it gives back."""
        for op in block.operations:
            operation = op.operation
            operands = tuple(self._numbers[value] for value in operation.operands)
            if operation.name == "func.call":
                self._call(operation, operands)
            elif operation.name == "stablehlo.while":
                self._while(operation, operands)
            elif operation.name == "stablehlo.return":
                return operands
            elif operation.name == "func.return" and not self._is_main(block):
                return operands
            else:
                self._operation(operation, operands)
        return ()

    def _is_main(self, block: Any) -> bool:
        return block == self._main.regions[0].blocks[0]

    def _operation(self, operation: Any, operands: tuple[int, ...]) -> None:
        results = list(operation.results)
        first = results[0] if results else None
        location = str(operation.location)
        number = self.add(operation.name, operands, first, operation, location)
        for value in results:
            self._numbers[value] = number

    def _call(self, operation: Any, operands: Sequence[int]) -> None:
        name = operation.attributes["callee"].value
        block = self._functions[name].regions[0].blocks[0]
        self._bind(block.arguments, operands)
        self._bind(operation.results, self.block(block))

    def _while(self, operation: Any, operands: Sequence[int]) -> None:
        body = operation.regions[1].blocks[0]
        location = str(operation.location)
        self._depth += 1
        entered = [
            self.add(CARRIED, (start,), value, None, location)
            for start, value in zip(operands, body.arguments, strict=True)
        ]
        left = self.block(body)
        self._depth -= 1
        for start, number, end, value in zip(
            operands, entered, left, operation.results, strict=True
        ):
            if end == number:
                self.walked[number].name = HELD
                self._numbers[value] = start
            else:
                self.add(CARRIED, (end, start), value, None, location)

    def _bind(self, values: Sequence[Any], numbers: Sequence[int]) -> None:
        for value, number in zip(values, numbers, strict=True):
            self._numbers[value] = number
