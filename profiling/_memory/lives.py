"""When each value of a scheduled module is made, and when it is last read.

Computations that are called are put in line, so that one clock counts the whole module:
a loop's condition and body come before the loop itself. Values that must lie in the
same place belong to one buffer: what passes through tuples, bitcasts, loops, branches
and asynchronous pairs, what is updated in place, and a donated input with its output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from profiling._hlo.module import Computation, Instruction, Module
from profiling._hlo.shape import Shape
from profiling._memory.in_place import InPlace

POINTER_BYTES = 8
_FIRST = frozenset(
    ("bitcast", "add-dependency", "domain", "opt-barrier", "optimization-barrier")
)
_PASSING = _FIRST | {"copy", "copy-start", "while", "call", "conditional"}


@dataclass(slots=True, eq=False, repr=False)
class Life:
    """One value, from when it is made to when it is last read.

    Attributes:
        instruction: That makes it.
        index: Where in that one's result, for a tuple.
        shape: Of the value.
        start: Time at which it is made.
        end: Time of its last use.
        reader: The first instruction that computes with it and says where it is from.
        buffer: What it lies in.
    """

    instruction: Instruction
    index: tuple[int, ...]
    shape: Shape
    start: int
    end: int
    reader: Instruction | None = None
    buffer: Buffer = field(init=False)

    @property
    def num_bytes(self) -> int:
        """Bytes; a tuple is a table of pointers."""
        if self.shape.is_tuple:
            return POINTER_BYTES * len(self.shape.elements)
        return 0 if self.shape.memory_space else self.shape.num_bytes


@dataclass(slots=True, eq=False, repr=False)
class Buffer:
    """Values that lie in one place.

    Attributes:
        lives: In the order in which they were found.
        is_argument: An input lies there.
        is_output: An output lies there.
    """

    lives: list[Life]
    is_argument: bool = False
    is_output: bool = False

    @property
    def num_bytes(self) -> int:
        """Size of the largest value."""
        return max(life.num_bytes for life in self.lives)

    @property
    def is_constant(self) -> bool:
        """Whether it is part of the program."""
        return all(life.instruction.opcode == "constant" for life in self.lives)

    @property
    def is_table(self) -> bool:
        """Whether it is a tuple's table of pointers."""
        return self.lives[0].shape.is_tuple


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """What lies at each place of a result: its own life, and those of its elements."""

    life: Life
    elements: tuple[Tree, ...] = ()

    def lives(self) -> Iterator[Life]:
        """Yield all, tables included, outermost first.

        Yields:
            Lives.
        """
        yield self.life
        for element in self.elements:
            yield from element.lives()


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """All values of a module.

    Attributes:
        buffers: In no order that matters.
        by_value: Lives by an instruction and the index in its result, also where that
            is a loop, or a parameter of its body, and the value was made before.
        operands: What an instruction reads; of a tuple, its table.
        end: Time after the last instruction.
    """

    buffers: tuple[Buffer, ...]
    by_value: dict[tuple[str, tuple[int, ...]], Life]
    operands: dict[Instruction, tuple[Life, ...]]
    end: int


def lives(module: Module, in_place: InPlace) -> Lives:
    """Follow every value of a module.

    Args:
        module: Scheduled; of another one the order of its text is taken.
        in_place: Its rules.

    Returns:
        Lives and the buffers that they share.
    """
    clock = _Clock(module, in_place)
    entry = [clock.made(p, 0) for p in module.entry.parameters]
    root = clock.run(module.entry, entry)
    for life in root.lives():
        life.end = clock.time
    for alias in module.aliases:
        given = entry[alias.parameter] if alias.parameter < len(entry) else None
        pair = (_at(root, alias.output), given and _at(given, alias.index))
        if pair[0] is not None and pair[1] is not None:
            clock.join(pair[0].life, pair[1].life)
    aliased = {life.buffer for life in root.lives()}
    for life in (life for tree in entry for life in tree.lives()):
        life.buffer.is_argument = True
        if life.buffer not in aliased:
            life.end = clock.time  # its memory stays the caller's
    for buffer in aliased:
        buffer.is_output = True
    found = dict.fromkeys(life.buffer for life in clock.all)
    return Lives(tuple(found), clock.by_value, clock.operands, clock.time)


def _at(tree: Tree, index: tuple[int, ...]) -> Tree | None:
    for i in index:
        if i >= len(tree.elements):
            return None
        tree = tree.elements[i]
    return tree


class _Clock:
    """Runs through a module once."""

    def __init__(self, module: Module, in_place: InPlace) -> None:
        self.module = module
        self.in_place = in_place
        self.time = 0
        self.all: list[Life] = []
        self.by_value: dict[tuple[str, tuple[int, ...]], Life] = {}
        self.operands: dict[Instruction, tuple[Life, ...]] = {}

    def made(
        self,
        instruction: Instruction,
        time: int,
        shape: Shape | None = None,
        index: tuple[int, ...] = (),
    ) -> Tree:
        """New values for a result, or for a part of it."""
        shape = instruction.shape if shape is None else shape
        life = Life(instruction, index, shape, time, time)
        life.buffer = Buffer([life])
        self.all.append(life)
        self.by_value[instruction.name, index] = life
        elements = tuple(
            self.made(instruction, time, element, (*index, i))
            for i, element in enumerate(shape.elements)
        )
        return Tree(life, elements)

    def join(self, a: Life, b: Life) -> None:
        """Put two values in one buffer."""
        keep, gone = a.buffer, b.buffer
        if keep is gone or a.shape.is_tuple != b.shape.is_tuple:
            return
        if len(keep.lives) < len(gone.lives):
            keep, gone = gone, keep
        for life in gone.lives:
            life.buffer = keep
        keep.lives += gone.lives

    def join_all(self, a: Tree, b: Tree) -> None:
        """Put the values of two results in the same buffers."""
        for one, other in zip(a.lives(), b.lives(), strict=False):
            self.join(one, other)

    def run(self, computation: Computation, arguments: list[Tree]) -> Tree:
        """Go through a computation in its order."""
        trees: dict[Instruction, Tree] = {}
        for instruction in computation.instructions:
            if instruction.opcode == "parameter":
                number = instruction.attributes.parameter
                known = number < len(arguments)
                tree = arguments[number] if known else self.made(instruction, self.time)
                self._name(instruction, tree)
                trees[instruction] = tree
                self.time += 1
                continue
            operands = [trees[o] for o in instruction.operands]
            tree = self._result(instruction, operands)
            for operand in operands:
                self._read(instruction, operand)
            if instruction.opcode in ("while", "call"):
                self._name(instruction, tree)
            self.operands[instruction] = tuple(o.life for o in operands)
            trees[instruction] = tree
            self.time += 1
        root = trees[computation.root]
        for life in root.lives():
            life.end = max(life.end, self.time)
        return root

    def _name(
        self, instruction: Instruction, tree: Tree, index: tuple[int, ...] = ()
    ) -> None:
        """Let values that were made before be found by another name."""
        self.by_value.setdefault((instruction.name, index), tree.life)
        for i, element in enumerate(tree.elements):
            self._name(instruction, element, (*index, i))

    def _read(self, instruction: Instruction, operand: Tree) -> None:
        if instruction.opcode == "tuple":
            return
        if instruction.opcode == "get-tuple-element":  # reads the table alone
            operand.life.end = max(operand.life.end, self.time)
            return
        opcode = instruction.opcode
        tells = not opcode.endswith("-done") and opcode not in _PASSING
        for life in operand.lives():
            life.end = max(life.end, self.time)
            if tells and life.reader is None and instruction.metadata.op_name:
                life.reader = instruction

    def _result(self, instruction: Instruction, operands: list[Tree]) -> Tree:
        opcode = instruction.opcode
        if opcode == "call" and instruction.called:
            return self.run(self.module.computation(instruction.called[0]), operands)
        if not operands:
            return self.made(instruction, self.time)
        if opcode in _FIRST:
            return operands[0]
        if opcode == "get-tuple-element":
            found = _at(operands[0], (instruction.attributes.tuple_index,))
            return found or self.made(instruction, self.time)
        if opcode == "tuple":
            return self._table(instruction, (), *operands)
        if opcode == "while" and len(instruction.called) == 2:
            return self._loop(instruction, operands)
        if opcode == "conditional":
            return self._branches(instruction, operands)
        if opcode.endswith("-start"):
            return self._started(instruction, operands)
        if opcode.endswith(("-done", "-update")):
            return self._done(instruction, operands[0])
        return self._computed(instruction, operands)

    def _computed(self, instruction: Instruction, operands: list[Tree]) -> Tree:
        tree = self.made(instruction, self.time)
        for result, operand in self.in_place.must(instruction).items():
            target = _at(tree, (result,) if tree.elements else ())
            if target and operand < len(operands) and not operands[operand].elements:
                self.join(operands[operand].life, target.life)
        return tree

    def _loop(self, instruction: Instruction, operands: list[Tree]) -> Tree:
        state = operands[0]
        body, condition = instruction.called
        self.run(self.module.computation(condition), [state])
        following = self.run(self.module.computation(body), [state])
        for life in (*state.lives(), *following.lives()):
            life.end = max(life.end, self.time)
        self.join_all(state, following)
        return state

    def _branches(self, instruction: Instruction, operands: list[Tree]) -> Tree:
        results = [
            self.run(self.module.computation(name), operands[i + 1 : i + 2])
            for i, name in enumerate(instruction.called)
        ]
        tree = self.made(instruction, self.time)
        for result in results:
            self.join_all(tree, result)
        return tree

    def _started(self, instruction: Instruction, operands: list[Tree]) -> Tree:
        """An operand is held until the transfer is done: it is part of the result."""
        shape = instruction.shape
        tree = self._wrapped(instruction, operands)
        if tree is not None or not shape.is_tuple or len(shape.elements) < 2:
            return tree or self._computed(instruction, operands)
        if instruction.opcode == "all-reduce-start":
            return self._computed(instruction, operands)
        held, kind = shape.elements[0], instruction.opcode
        known = 2 if kind == "copy-start" else 1
        rest = [
            self.made(instruction, self.time, element, (i,))
            for i, element in enumerate(shape.elements)
            if i >= known
        ]
        if kind in ("copy-start", "recv-start"):
            first = self.made(instruction, self.time, held, (0,))
        elif held.is_tuple:
            first = self._table(instruction, (0,), *operands)
        else:
            first = operands[0]
        return self._table(instruction, (), first, *operands[: known - 1], *rest)

    def _wrapped(self, instruction: Instruction, operands: list[Tree]) -> Tree | None:
        """Of an async-start that calls a computation: that one's result is in it."""
        if instruction.opcode != "async-start" or not instruction.called:
            return None
        result = self.run(self.module.computation(instruction.called[0]), operands)
        rest = [
            self.made(instruction, self.time, element, (i,))
            for i, element in enumerate(instruction.shape.elements)
            if i >= 2
        ]
        held = self._table(instruction, (0,), *operands)
        return self._table(instruction, (), held, result, *rest)

    def _table(
        self, instruction: Instruction, index: tuple[int, ...], *elements: Tree
    ) -> Tree:
        """A tuple of what there is."""
        shape = Shape("tuple", (), tuple(e.life.shape for e in elements))
        empty = self.made(instruction, self.time, Shape("tuple"), index).life
        empty.shape = shape
        return Tree(empty, elements)

    def _done(self, instruction: Instruction, started: Tree) -> Tree:
        kind = instruction.opcode.removesuffix("-done")
        whole = kind == "all-reduce" or instruction.opcode.endswith("-update")
        if whole or not started.elements:
            return started
        if kind in ("copy", "recv"):
            element = started.elements[0]
        else:
            element = started.elements[min(1, len(started.elements) - 1)]
        if element.life.shape.is_tuple != instruction.shape.is_tuple:
            return self._table(instruction, (), element)  # such as recv's, with a token
        return element
