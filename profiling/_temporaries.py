"""The largest temporaries of a compiled module, from its buffer assignment.

Field numbers are those of `xla/service/hlo.proto` in openxla/xla.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator

from profiling._wire import fields

_MODULE, _ASSIGNMENT = 1, 3  # HloProto
_COMPUTATION, _INSTRUCTION = 3, 2  # HloModuleProto, HloComputationProto
_NAME, _INSTRUCTION_ID = 1, 35  # HloInstructionProto
_LOGICAL_BUFFER, _ALLOCATION = 1, 3  # BufferAssignmentProto
_ID, _DEFINED_AT, _AT_INSTRUCTION = 1, 3, 4  # LogicalBufferProto, its Location
_ASSIGNED, _ASSIGNED_SIZE = 9, 3  # BufferAllocationProto, its Assigned
# Allocations that are not the arena of temporaries say one of: thread local, entry
# parameter, live out, constant.
_NOT_TEMPORARY = {3, 5, 7, 12}


def largest_temporaries(buffers: bytes, limit: int) -> dict[str, int]:
    """The largest values among a module's temporaries.

    Args:
        buffers: HloProto with a buffer assignment.
        limit: How many.

    Returns:
        Bytes by the name of the instruction that makes the value, largest first. Their
        sum says little: values that are not needed at the same time share memory.
    """
    sizes: dict[int, int] = {}  # by id of the logical buffer
    made_by: dict[int, int] = {}  # id of the instruction, by id of the logical buffer
    for start, end in _parts(buffers, (_ASSIGNMENT,), 0, len(buffers)):
        for number, wire, at, stop in fields(buffers, start, end):
            if number == _LOGICAL_BUFFER:
                made_by.update(_definition(buffers, at, stop))
            elif number == _ALLOCATION and wire == 2:
                sizes.update(_assigned(buffers, at, stop))
    largest = heapq.nlargest(limit, sizes.items(), key=lambda item: item[1])
    wanted = {made_by[buffer]: size for buffer, size in largest if buffer in made_by}
    names = _names(buffers, wanted.keys())
    return {names.get(i, f"instruction {i}"): size for i, size in wanted.items()}


def _definition(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    identity = _number(data, start, end, _ID)
    for at, stop in _parts(data, (_DEFINED_AT,), start, end):
        yield identity, _number(data, at, stop, _AT_INSTRUCTION)


def _assigned(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    if any(_number(data, start, end, flag) for flag in _NOT_TEMPORARY):
        return
    for at, stop in _parts(data, (_ASSIGNED,), start, end):
        yield _number(data, at, stop, _ID), _number(data, at, stop, _ASSIGNED_SIZE)


def _names(data: bytes, wanted: Container[int]) -> dict[int, str]:
    found = {}
    path = (_MODULE, _COMPUTATION, _INSTRUCTION)
    for start, end in _parts(data, path, 0, len(data)):
        identity = _number(data, start, end, _INSTRUCTION_ID)
        if identity in wanted:
            ((at, stop),) = _parts(data, (_NAME,), start, end)
            found[identity] = data[at:stop].decode(errors="replace")
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


def _number(data: bytes, start: int, end: int, wanted: int) -> int:
    """The value of a varint field; 0, protobuf's default, where it is not there."""
    for number, wire, at, stop in fields(data, start, end):
        if number == wanted and wire == 0:
            value = 0
            for byte in reversed(data[at:stop]):
                value = value << 7 | byte & 0x7F
            return value
    return 0
