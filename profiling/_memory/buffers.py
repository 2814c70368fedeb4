"""`BufferAssignment`: the memory that a compiler laid out, and what lies where.

A proto is read here, XLA's text in `_buffers_text`. Field numbers are those of
`xla/service/hlo.proto` in openxla/xla.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from profiling._hlo.wire import fields

Kind: TypeAlias = Literal[
    "thread local", "parameter", "output", "constant", "temporary"
]
_MODULE, _ASSIGNMENT = 1, 3  # HloProto
_COMPUTATION, _INSTRUCTION = 3, 2  # HloModuleProto, HloComputationProto
_NAME, _INSTRUCTION_ID = 1, 35  # HloInstructionProto
_LOGICAL_BUFFER, _ALLOCATION, _TRACE = 1, 3, 4  # BufferAssignmentProto
_ID, _DEFINED_AT = 1, 3  # LogicalBufferProto
_SHAPE_INDEX, _AT_INSTRUCTION = 3, 4  # its Location
_INDEX, _SIZE, _THREAD_LOCAL, _PARAMETER = 1, 2, 3, 5  # BufferAllocationProto
_LIVE_OUT, _COLOR, _ASSIGNED, _CONSTANT = 7, 8, 9, 12
_OFFSET, _ASSIGNED_SIZE = 2, 3  # BufferAllocationProto.Assigned
_EVENT = 1  # HeapSimulatorTrace
_EVENT_KIND, _EVENT_BUFFER = 1, 2  # HeapSimulatorTrace.Event
_FREE = 1
_KINDS: tuple[tuple[int, Kind], ...] = (
    (_THREAD_LOCAL, "thread local"),
    (_PARAMETER, "parameter"),
    (_CONSTANT, "constant"),
    (_LIVE_OUT, "output"),
)
Event: TypeAlias = tuple[int, bool]
"""Id of a value, and whether its life starts or ends."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A value in an allocation.

    Attributes:
        name: Of the instruction that makes it.
        index: Where in that one's result, for a tuple.
        num_bytes: Its size.
        offset: Where it starts.
        id: As the compiler counts values.
    """

    name: str
    index: tuple[int, ...]
    num_bytes: int
    offset: int
    id: int


@dataclass(frozen=True, slots=True, repr=False)
class Allocation:
    """One piece of a device's memory.

    Attributes:
        index: The compiler's number of it.
        num_bytes: Its size.
        kind: What it is for; a parameter's may be an output's as well.
        is_output: Some output is in it.
        space: Memory space, 0 for the device's main memory.
        values: What lies in it; values that overlap are not needed at the same time.
    """

    index: int
    num_bytes: int
    kind: Kind
    is_output: bool = False
    space: int = 0
    values: tuple[Placed, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class BufferAssignment:
    """All memory of a module.

    Attributes:
        allocations: In the compiler's order.
        traces: For each arena, what happens in it as the module runs. Empty where the
            compiler does not say.
        peak: Names of all that lives when most is in use, where the file says so.
    """

    allocations: tuple[Allocation, ...] = ()
    traces: tuple[tuple[Event, ...], ...] = ()
    peak: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def temporaries(self) -> Iterator[Allocation]:
        """Yield what is for temporaries, in the main memory."""
        for allocation in self.allocations:
            if allocation.kind == "temporary" and not allocation.space:
                yield allocation

    def num_bytes(self, kind: Kind) -> int:
        """Size of what is for one thing, in the main memory.

        Args:
            kind: For what. An output that takes a parameter's memory counts in both.

        Returns:
            Bytes, as XLA's `CompiledMemoryStats` counts them.
        """
        return sum(
            a.num_bytes
            for a in self.allocations
            if not a.space and (a.kind == kind or (kind == "output" and a.is_output))
        )

    @property
    def alias_bytes(self) -> int:
        """Size of parameters' memory that outputs take over."""
        return sum(
            a.num_bytes
            for a in self.allocations
            if a.kind == "parameter" and a.is_output and not a.space
        )


def from_proto(data: bytes) -> BufferAssignment:
    """Read the assignment of an `HloProto`.

    Args:
        data: The message.

    Returns:
        The assignment; nothing in it where the message has none.

    Raises:
        WireFault: Bytes that are no message.
    """
    made: dict[int, tuple[int, tuple[int, ...]]] = {}
    raw: list[tuple[int, int]] = []
    traces: list[tuple[Event, ...]] = []
    for start, end in _parts(data, (_ASSIGNMENT,), 0, len(data)):
        for number, wire, at, stop in fields(data, start, end):
            if number == _LOGICAL_BUFFER:
                made.update(_definition(data, at, stop))
            elif number == _ALLOCATION and wire == 2:
                raw.append((at, stop))
            elif number == _TRACE:
                traces.append(_trace(data, at, stop))
    names = _names(data, {instruction for instruction, _ in made.values()})
    named = {
        buffer: (names.get(instruction, f"instruction {instruction}"), index)
        for buffer, (instruction, index) in made.items()
    }
    found = tuple(_allocation(data, at, stop, named) for at, stop in raw)
    return BufferAssignment(found, tuple(traces))


def _definition(
    data: bytes, start: int, end: int
) -> Iterator[tuple[int, tuple[int, tuple[int, ...]]]]:
    identity = 0
    for number, wire, at, stop in fields(data, start, end):
        if number == _ID and wire == 0:
            identity = _varint(data, at, stop)
        elif number == _DEFINED_AT and wire == 2:
            yield identity, _location(data, at, stop)


def _location(data: bytes, start: int, end: int) -> tuple[int, tuple[int, ...]]:
    instruction, index = 0, ()
    for number, wire, at, stop in fields(data, start, end):
        if number == _AT_INSTRUCTION and wire == 0:
            instruction = _varint(data, at, stop)
        elif number == _SHAPE_INDEX:
            index += tuple(_varints(data, at, stop))
    return instruction, index


def _allocation(
    data: bytes,
    start: int,
    end: int,
    named: dict[int, tuple[str, tuple[int, ...]]],
) -> Allocation:
    numbers: dict[int, int] = {}
    values: list[Placed] = []
    for number, wire, at, stop in fields(data, start, end):
        if wire == 0:
            numbers[number] = _varint(data, at, stop)
        elif number == _ASSIGNED and wire == 2:
            values.append(_placed(data, at, stop, named))
    kinds: list[Kind] = [kind for flag, kind in _KINDS if numbers.get(flag)]
    return Allocation(
        numbers.get(_INDEX, 0),
        numbers.get(_SIZE, 0),
        kinds[0] if kinds else "temporary",
        bool(numbers.get(_LIVE_OUT)),
        numbers.get(_COLOR, 0),
        tuple(values),
    )


def _placed(
    data: bytes, start: int, end: int, named: dict[int, tuple[str, tuple[int, ...]]]
) -> Placed:
    numbers = {
        number: _varint(data, at, stop)
        for number, wire, at, stop in fields(data, start, end)
        if wire == 0
    }
    identity = numbers.get(_ID, 0)
    name, index = named.get(identity, (f"value {identity}", ()))
    size, offset = numbers.get(_ASSIGNED_SIZE, 0), numbers.get(_OFFSET, 0)
    return Placed(name, index, size, offset, identity)


def _trace(data: bytes, start: int, end: int) -> tuple[Event, ...]:
    events: list[Event] = []
    for number, wire, at, stop in fields(data, start, end):
        if number == _EVENT and wire == 2:
            numbers = {
                n: _varint(data, first, last)
                for n, form, first, last in fields(data, at, stop)
                if form == 0
            }
            starts = numbers.get(_EVENT_KIND, 0) != _FREE
            events.append((numbers.get(_EVENT_BUFFER, 0), starts))
    return tuple(events)


def _names(data: bytes, wanted: Container[int]) -> dict[int, str]:
    found = {}
    path = (_MODULE, _COMPUTATION, _INSTRUCTION)
    for start, end in _parts(data, path, 0, len(data)):
        name, identity = "", 0
        for number, wire, at, stop in fields(data, start, end):
            if number == _NAME and wire == 2:
                name = data[at:stop].decode(errors="replace")
            elif number == _INSTRUCTION_ID and wire == 0:
                identity = _varint(data, at, stop)
        if identity in wanted:
            found[identity] = name
    return found


def _parts(
    data: bytes, path: tuple[int, ...], start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Start and end of each message at a path of field numbers."""
    for number, wire, at, stop in fields(data, start, end):
        if number == path[0] and wire == 2:
            if len(path) == 1:
                yield at, stop
            else:
                yield from _parts(data, path[1:], at, stop)


def _varints(data: bytes, start: int, end: int) -> Iterator[int]:
    """Numbers side by side, as protobuf packs a list of them."""
    first = start
    for at in range(start, end):
        if data[at] < 0x80:
            yield _varint(data, first, at + 1)
            first = at + 1


def _varint(data: bytes, start: int, end: int) -> int:
    value = 0
    for byte in reversed(data[start:end]):
        value = value << 7 | byte & 0x7F
    return value
