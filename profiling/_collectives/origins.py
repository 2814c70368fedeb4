"""`Origins`: which inputs a value is, or what computed it, and what is made of it."""

from __future__ import annotations

from dataclasses import dataclass

from profiling._collectives.flow import Flow, Value
from profiling._hlo.module import Instruction, Module
from profiling._hlo.shape import Shape

Leaf = tuple[int, tuple[int, ...]]
"""Number of an entry parameter, and index of an array in it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from.

    Attributes:
        inputs: Numbers of the inputs that it is, element by element: cast, cut, moved
            between devices, scaled; empty if it is computed, or made of constants.
        producer: The instruction that computed it; None if nothing did.
    """

    inputs: tuple[int, ...] = ()
    producer: Instruction | None = None


class Origins:
    """Looks up where values come from.

    Args:
        module: The final module of one device.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.flow = Flow(module)
        self._numbers = {leaf: n for n, (leaf, _) in enumerate(input_leaves(module))}
        self._producers: dict[Value, Instruction] = {}

    def of(self, value: Value) -> Origin:
        """Where a value comes from.

        Args:
            value: Of the module.

        Returns:
            Its origin. One that is a smaller array spread out has that one's.
        """
        found = self._of(value)
        while found == Origin() and (source := self._spread(value)) is not None:
            value = source
            found = self._of(value)
        return found

    def number(self, value: Value) -> int | None:
        """Number of an input.

        Args:
            value: A parameter of the entry, or an element of it.

        Returns:
            Its place among all arrays that the module is given; None for several.
        """
        return self._numbers.get((value[0].attributes.parameter, value[1]))

    def is_numbers(self, value: Value) -> bool:
        """Whether an array is a number, or several that were computed one by one.

        Args:
            value: Of the module.

        Returns:
            True for a loss, or for the norms of many gradients side by side.
        """
        todo, budget = [value], _MOST_PIECES
        while todo:
            instruction, index = at = todo.pop()
            if leaf_shape(instruction.shape, index).num_elements <= 1:
                continue
            way, before = self.flow.before(at)
            budget -= 1
            if way != "on" or instruction.opcode not in _JOINING or not budget:
                return False
            todo += before
        return True

    def _of(self, value: Value) -> Origin:
        inputs: dict[int, None] = {}
        seen = {value}
        path: list[tuple[Value, list[Value]]] = []
        todo = [value]
        while True:
            if todo:
                at = todo.pop()
                producer = self._producers.get(at)
                way, before = self.flow.before(at)
                if producer is None and (
                    way == "computed" or at[0].opcode == "scatter"
                ):
                    producer = at[0]
                if producer is not None:
                    self._producers[at] = producer
                    self._producers.update((v, producer) for v, _ in path)
                    return Origin((), producer)
                if way == "input" and (number := self.number(at)) is not None:
                    inputs[number] = None
                rest = [v for v in dict.fromkeys(reversed(before)) if v not in seen]
                seen.update(rest)
                path.append((at, todo))
                todo = rest
            elif path:
                _, todo = path.pop()
            else:
                return Origin(tuple(sorted(inputs)))

    def _spread(self, value: Value) -> Value | None:
        """The small array that one which is nothing but broadcasts is made of."""
        for _ in range(_MOST_HOPS):
            instruction, _index = value
            if instruction.opcode == "broadcast":
                return instruction.operands[0], ()
            way, before = self.flow.before(value)
            if way != "on" or len(before) != 1:
                return None
            (value,) = before
        return None


_MOST_HOPS = 16
_MOST_PIECES = 10_000
_JOINING = frozenset(
    """
    bitcast call concatenate copy copy-done copy-start dynamic-update-slice fusion
    get-tuple-element parameter reshape tuple
    """.split()
)


def inputs_of(origins: Origins, value: Value) -> set[int]:
    """Inputs that go into a result element by element, whatever else does.

    Args:
        origins: Of the module.
        value: The result.

    Returns:
        Their numbers.
    """
    found: set[int] = set()
    seen, todo = {value}, [value]
    while todo:
        way, before = origins.flow.before(at := todo.pop())
        if way == "input" and (number := origins.number(at)) is not None:
            found.add(number)
        todo += [v for v in before if v not in seen]
        seen.update(before)
    return found


def input_leaves(module: Module) -> list[tuple[Leaf, Instruction]]:
    """Arrays that a module is given, in order, and the parameter each is in.

    Args:
        module: Any module; its inputs may be packed in one tuple.

    Returns:
        Leaves of the entry's parameters.
    """
    return [
        ((parameter.attributes.parameter, index), parameter)
        for parameter in module.entry.parameters
        for index in indices(parameter.shape)
    ]


def output_leaves(module: Module) -> list[Value]:
    """Arrays that a module gives back, in order.

    Args:
        module: Any module.

    Returns:
        Leaves of the entry's root.
    """
    root = module.entry.root
    return [(root, index) for index in indices(root.shape)]


def indices(shape: Shape) -> list[tuple[int, ...]]:
    """Index of each array of a shape, depth first.

    Args:
        shape: Of an array or a tuple.

    Returns:
        Indices; of an array, the empty one.

    Example:
        >>> indices(Shape.parse("(f32[], (s32[2], s32[2]))"))
        [(0,), (1, 0), (1, 1)]
    """
    if not shape.is_tuple:
        return [()]
    return [(i, *rest) for i, e in enumerate(shape.elements) for rest in indices(e)]


def leaf_shape(shape: Shape, index: tuple[int, ...]) -> Shape:
    """The shape at an index.

    Args:
        shape: Of an array or a tuple.
        index: From `indices`.

    Returns:
        Shape of the element.
    """
    for i in index:
        shape = shape.elements[i]
    return shape
