"""Estimate what a module needs of a device's memory, from its schedule alone.

The compiler's own figures are better, and taken where there are any. This follows XLA's
`BufferAssigner`, in its order: inputs; then the rest by size, where each may lie in the
memory of a donated input or of an output that is not in use yet; then outputs of their
own; what remains goes into one arena, by best fit. Left out: a TPU's tile padding, what
lies in other memory than the main one, aliases that only ``output_to_operand_aliasing``
tells of, and what a library takes while it runs, such as cuFFT's workspace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from profiling._hlo.module import Computation, Instruction, Module
from profiling._memory.in_place import InPlace
from profiling._memory.lives import Buffer, Life, Lives, lives
from profiling._memory.pack import Block, arena_bytes, profile

Platform: TypeAlias = Literal["cpu", "gpu", "tpu"]
_ALIGNMENT: dict[Platform, int] = {"cpu": 64, "gpu": 256, "tpu": 512}
# As seen in the buffer assignments of jaxlib, the CUDA plugin 0.10.2 and libtpu 0.0.42.

_OWN_START = frozenset(
    ("all-gather", "all-reduce", "collective-permute", "copy", "recv", "send", "async")
)
"""Kinds with an opcode of their own that starts them."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of one device.

    Attributes:
        argument_bytes: Inputs.
        output_bytes: Outputs, aliased ones included.
        alias_bytes: Outputs that take over an input's memory.
        temp_bytes: Temporaries, in one arena.
        peak_bytes: Most that is in use at any time.
        at_peak: Temporaries of the arena that live when most of it is in use, largest
            first.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_bytes: int
    at_peak: tuple[Life, ...]


def estimate(module: Module, platform: Platform) -> MemoryEstimate:
    """Estimate what a module needs.

    Args:
        module: Of one device, scheduled; of another one the order of its text is taken.
        platform: Whose rules: all but CPUs reduce in place, and all but TPUs keep
            tables of pointers for tuples among these bytes.

    Returns:
        The estimate.
    """
    in_place = InPlace(module, reduces_in_place=platform != "cpu")
    found = lives(module, in_place)
    order = _Order(module)
    tables = platform != "tpu"
    buffers = [
        b
        for b in found.buffers
        if b.num_bytes and not b.is_constant and (tables or not b.is_table)
    ]
    buffers.sort(key=lambda b: (-b.num_bytes, not b.is_output, order.rank(b)))
    places = _Places(found, in_place)
    for buffer in buffers:
        places.put(buffer)
    groups = places.shared()
    blocks = [_block(group) for group in groups]
    arguments = sum(b.num_bytes for b in buffers if b.is_argument)
    return MemoryEstimate(
        argument_bytes=arguments,
        output_bytes=sum(b.num_bytes for b in buffers if b.is_output),
        alias_bytes=sum(b.num_bytes for b in buffers if b.is_output and b.is_argument),
        temp_bytes=_temp_bytes(blocks, places.tables, _ALIGNMENT[platform]),
        peak_bytes=arguments + _most(blocks, places.outputs, found.end),
        at_peak=_at_peak(groups, blocks),
    )


def _temp_bytes(blocks: list[Block], tables: list[Buffer], alignment: int) -> int:
    """The arena; behind it each table in a place of its own."""
    total = arena_bytes(blocks, alignment=alignment)
    for table in reversed(tables):
        total = -(-total // alignment) * alignment + table.num_bytes
    return total


class _Order:
    """Where values come in XLA's order: callers first, in each operands before users.

    XLA's text writes ``all-to-all-start`` for an async-start that calls a computation;
    the result is made in that one, so it comes after all that the caller makes.
    """

    def __init__(self, module: Module) -> None:
        self._ranks = {}
        for computation in reversed(module.computations):
            for instruction in _post_order(computation):
                self._ranks[instruction] = len(self._ranks)

    def rank(self, buffer: Buffer) -> int:
        return min(self._rank(life) for life in buffer.lives)

    def _rank(self, life: Life) -> int:
        rank = self._ranks[life.instruction]
        opcode = life.instruction.opcode
        kind = opcode.removesuffix("-start")
        inside = kind != opcode and kind not in _OWN_START and life.index[:1] == (1,)
        return rank + len(self._ranks) if inside else rank


class _Places:
    """Gives buffers a place, the largest first."""

    def __init__(self, found: Lives, in_place: InPlace) -> None:
        self._found = found
        self._in_place = in_place
        self._open = _Open()
        self.outputs: list[_Place] = []
        self.arena: list[Buffer] = []
        self.tables: list[Buffer] = []

    def put(self, buffer: Buffer) -> None:
        if buffer.is_argument:
            if buffer.is_output:
                self._open.add(_Place(buffer.num_bytes, list(buffer.lives)))
            return
        if not buffer.is_table:
            for place in self._open.candidates(buffer):
                if self._fits(buffer, place):
                    self._open.put(buffer.lives, place)
                    return
        if buffer.is_output:
            place = _Place(buffer.num_bytes, list(buffer.lives))
            self.outputs.append(place)
            if not buffer.is_table:
                self._open.add(place)
        elif buffer.is_table:
            self.tables.append(buffer)
        else:
            self.arena.append(buffer)

    def _fits(self, buffer: Buffer, place: _Place) -> bool:
        return not any(self._meet(a, b) for a in place.lives for b in buffer.lives)

    def _meet(self, a: Life, b: Life) -> bool:
        if a.start > b.start:
            a, b = b, a
        if b.start > a.end:
            return False
        return a.end != b.start or not self._may_share(a, b)

    def _may_share(self, a: Life, b: Life) -> bool:
        """Whether `b` may be written where `a` lies, which nothing reads after it."""
        if len(b.index) > 1 or a.start == b.start or a.buffer is b.buffer:
            return False
        result = b.index[0] if b.index else 0
        read = self._found.operands.get(b.instruction, ())
        return any(
            life is a and self._in_place.may(b.instruction, i, result)
            for i, life in enumerate(read)
        )

    def shared(self) -> list[list[Buffer]]:
        """The arena's buffers, those together that one place serves in turn."""
        groups: dict[Buffer, list[Buffer]] = {b: [b] for b in self.arena}
        single = [b for b in self.arena if len(b.lives) == 1]
        for buffer in sorted(single, key=lambda b: b.lives[0].start):
            life = buffer.lives[0]
            for operand in self._found.operands.get(life.instruction, ()):
                other = operand.buffer
                group = groups.get(other)
                if group is None or len(other.lives) > 1 or group[-1] is not other:
                    continue
                if operand.end == life.start and self._may_share(operand, life):
                    group.append(buffer)
                    groups[buffer] = group
                    break
        return list({id(group): group for group in groups.values()}.values())


def _post_order(computation: Computation) -> Iterator[Instruction]:
    """Each instruction after its operands, and those as late as they can be."""
    seen: set[Instruction] = set()
    used = {o for i in computation.instructions for o in i.operands}
    stack = [i for i in reversed(computation.instructions) if i not in used]
    open_: set[Instruction] = set()
    while stack:
        instruction = stack[-1]
        if instruction in open_ or instruction in seen:
            stack.pop()
            if instruction not in seen:
                seen.add(instruction)
                yield instruction
            continue
        open_.add(instruction)
        stack += [o for o in reversed(instruction.operands) if o not in seen]


@dataclass(slots=True, eq=False)
class _Place:
    """Memory that may be used again: an output's, or a donated input's."""

    num_bytes: int
    lives: list[Life]


class _Open:
    """Places that further values may lie in; asks few of them.

    A large step has thousands of buffers and as many places, nearly all of which are
    taken all the time: so the times are kept as columns.
    """

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._numbers: dict[_Place, int] = {}
        self._sizes: list[int] = []
        self._taken = np.empty((64, 3), np.int64)  # place, start and end of each life
        self._num_taken = 0

    def add(self, place: _Place) -> None:
        self._numbers[place] = len(self._places)
        self._places.append(place)
        self._sizes.append(place.num_bytes)
        self._take(place, place.lives)

    def put(self, lives: list[Life], place: _Place) -> None:
        """Let values lie in a place."""
        place.lives += lives
        self._take(place, lives)

    def _take(self, place: _Place, lives: list[Life]) -> None:
        number, end = self._numbers[place], self._num_taken + len(lives)
        while end > len(self._taken):
            self._taken = np.concatenate((self._taken, np.empty_like(self._taken)))
        rows = [(number, life.start, life.end) for life in lives]
        self._taken[self._num_taken : end] = rows
        self._num_taken = end

    def candidates(self, buffer: Buffer) -> Iterator[_Place]:
        """Places that are large enough, and not taken during the first value's life.

        Yields:
            Places, the newest first.
        """
        places, starts, ends = self._taken[: self._num_taken].T
        life, size = buffer.lives[0], buffer.num_bytes
        sizes = np.array(self._sizes, np.int64)
        fits = sizes == size if buffer.is_output else sizes >= size
        meets = np.maximum(starts, life.start) < np.minimum(ends, life.end)
        fits[places[meets]] = False
        for index in np.flatnonzero(fits)[::-1].tolist():
            yield self._places[index]


def _block(group: Iterable[Buffer]) -> Block:
    spans = [life for buffer in group for life in buffer.lives]
    return Block(
        max(b.num_bytes for b in group),
        min(life.start for life in spans),
        max(life.end for life in spans),
    )


def _most(blocks: list[Block], outputs: list[_Place], end: int) -> int:
    """Most bytes of temporaries and outputs at one time."""
    held = [
        Block(p.num_bytes, min(life.start for life in p.lives), end) for p in outputs
    ]
    return max(profile([*blocks, *held]), default=0)


def _at_peak(groups: list[list[Buffer]], blocks: list[Block]) -> tuple[Life, ...]:
    sums = profile(blocks)
    if not sums:
        return ()
    time = sums.index(max(sums))
    alive = []
    for group, block in zip(groups, blocks, strict=True):
        if block.start <= time <= block.end:
            spans = [life for buffer in group for life in buffer.lives]
            started = [life for life in spans if life.start <= time]
            alive.append(max(started, key=lambda life: (life.num_bytes, life.start)))
    return tuple(sorted(alive, key=lambda life: -life.num_bytes))
