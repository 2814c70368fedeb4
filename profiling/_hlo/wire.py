"""Protobuf's wire format, as far as needed to say where a file is damaged.

protobuf itself only says that a message does not parse. Source: the encoding page of
protobuf.dev.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

Fields: TypeAlias = Mapping[int, "Fields | None"]
"""Fields that are messages, by number, with theirs; None for a message without any."""

_WIRES = {0: "varint", 1: "64-bit", 2: "length-delimited", 5: "32-bit"}


def fields(
    data: bytes, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Walk the fields of one message.

    Args:
        data: All bytes.
        start: Where the message starts.
        end: Where it ends; None for the end of the data.

    Yields:
        Field number, wire type, and start and end of the value.

    Raises:
        WireFault: Bytes that are no message.

    Example:
        >>> list(fields(bytes([0x0A, 2, 65, 66, 0x10, 7])))
        [(1, 2, 2, 4), (2, 0, 5, 6)]
    """
    end = len(data) if end is None else end
    at = start
    while at < end:
        tag, after = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if not number or wire not in _WIRES:
            raise WireFault(f"no field has the tag {tag}", at)
        if wire == 0:
            _, stop = _varint(data, after, end)
        elif wire == 2:
            size, after = _varint(data, after, end)
            stop = after + size
        else:
            stop = after + (8 if wire == 1 else 4)
        if stop > end:
            raise WireFault(
                f"field {number} goes on for {stop - end} bytes behind the end of its "
                f"message",
                at,
            )
        yield number, wire, after, stop
        at = stop


def apart(
    data: bytes, start: int, end: int, number: int
) -> tuple[bytes, list[tuple[int, int]]]:
    r"""Take a list out of a message, to read its items one at a time.

    Args:
        data: All bytes.
        start: Where the message starts.
        end: Where it ends.
        number: Of the list's field.

    Returns:
        The message without the list, and where each item starts and ends.

    Raises:
        WireFault: Bytes that are no message.

    Example:
        >>> apart(bytes([0x0A, 1, 65, 0x10, 7, 0x0A, 0]), 0, 7, 1)
        (b'\x10\x07', [(2, 3), (7, 7)])
    """
    small: list[bytes] = []
    items: list[tuple[int, int]] = []
    at = start
    for found, wire, first, last in fields(data, start, end):
        if found == number and wire == 2:
            items.append((first, last))
        else:
            small.append(data[at:last])
        at = last
    return b"".join(small), items


def first_fault(data: bytes, known: Fields) -> WireFault | None:
    """Where a message stops to make sense.

    Args:
        data: The message.
        known: Which fields are messages, all the way down.

    Returns:
        The first fault; None if there is none.
    """
    todo: list[tuple[int, int, Fields]] = [(0, len(data), known)]
    found: list[WireFault] = []
    while todo:
        start, end, inner = todo.pop()
        try:
            for number, wire, after, stop in fields(data, start, end):
                below = inner.get(number)
                if wire == 2 and below is not None:
                    todo.append((after, stop, below))
        except WireFault as fault:
            found.append(fault)
    return min(found, key=lambda fault: fault.at, default=None)


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for i in range(at, min(end, at + 10)):
        value |= (data[i] & 0x7F) << shift
        shift += 7
        if data[i] < 0x80:
            return value, i + 1
    raise WireFault("a number does not end", at)


class WireFault(Exception):
    """What is wrong at a byte; the reader adds the file and raises ValueError."""

    def __init__(self, problem: str, at: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.at = at
