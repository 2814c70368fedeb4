"""Read a buffer assignment from XLA's text, ``...-buffer-assignment.txt``."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from profiling._hlo.damage import in_bytes
from profiling._hlo.wire import WireFault
from profiling._memory.buffers import (
    Allocation,
    BufferAssignment,
    Kind,
    Placed,
    from_proto,
)

_GZIP_MAGIC = b"\x1f\x8b"
_HEAD = "BufferAssignment:"
_ALLOCATION = re.compile(r"allocation (\d+): (?:0x[0-9a-f]+, )?size (\d+)(.*):\s*$")
_VALUE = re.compile(
    r"\s*value: <(\d+) (\S+?)(?:\{([\d,]*)\})? @(\d+)> \(size=(\d+),offset=(\d+)\)"
)
_PEAK = re.compile(r"\s*Live ranges at \d+ \(peak\):")
_ALIVE = re.compile(r"\s+(\S+?)\{([\d,]*)\}: \d+ bytes")
_COLOR = re.compile(r"\bcolor (\d+)")
_KINDS: tuple[tuple[str, Kind], ...] = (
    ("thread-local", "thread local"),
    ("parameter ", "parameter"),
    ("constant", "constant"),
    ("maybe-live-out", "output"),
)


def load_assignment(path: Path) -> BufferAssignment:
    """Read a file.

    Args:
        path: XLA's text, or an `HloProto`; gzipped or not.

    Returns:
        The assignment; nothing in it where the file has none.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Neither; says where.
    """
    data = _unpacked(path)
    if data.lstrip().startswith(_HEAD.encode()):
        return from_text(data.decode(errors="replace"), source=str(path))
    try:
        return from_proto(data)
    except WireFault as fault:
        raise in_bytes(
            str(path),
            f"no buffer assignment, neither text nor proto: {fault.problem}",
            offset=fault.at,
        ) from None


def _unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        problem = f"the gzip data is damaged or cut short: {error}"
        raise in_bytes(str(path), problem, offset=len(data)) from None


def from_text(text: str, *, source: str) -> BufferAssignment:
    """Read XLA's text.

    Args:
        text: From ``BufferAssignment:`` on.
        source: What errors call it.

    Returns:
        The assignment.

    Raises:
        ValueError: A line that is neither an allocation nor a value; says which.
    """
    rows: list[tuple[int, int, str, list[Placed]]] = []
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.strip() == _HEAD), -1)
    end = start + 1
    for end, line in enumerate(lines[start + 1 :], start + 1):
        if not line.strip():
            break
        if match := _ALLOCATION.match(line):
            rows.append((int(match[1]), int(match[2]), match[3], []))
        elif (match := _VALUE.match(line)) and rows:
            rows[-1][3].append(_placed(match))
        else:
            raise ValueError(
                f"{source}:{end + 1}: an allocation or a value of one is expected, "
                f"not {line.strip()[:60]!r}; is the file cut short?"
            )
    found = tuple(_allocation(*row) for row in rows)
    return BufferAssignment(found, peak=_peak(lines[end:]))


def _placed(match: re.Match[str]) -> Placed:
    number, name, index, _, size, offset = match.groups()
    return Placed(name, _ints(index), int(size), int(offset), int(number))


def _allocation(index: int, size: int, words: str, values: list[Placed]) -> Allocation:
    # ", parameter 0, shape |f32[16,64]| at ShapeIndex {}, maybe-live-out"
    plain = re.sub(r"\|.*?\|", "", words)
    kinds: list[Kind] = [kind for word, kind in _KINDS if word in plain]
    color = _COLOR.search(plain)
    return Allocation(
        index,
        size,
        kinds[0] if kinds else "temporary",
        "maybe-live-out" in plain,
        int(color[1]) if color else 0,
        tuple(values),
    )


def _peak(lines: list[str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    found = []
    start = next((i for i, line in enumerate(lines) if _PEAK.match(line)), len(lines))
    for line in lines[start + 1 :]:
        match = _ALIVE.match(line)
        if match is None:
            break
        found.append((match[1], _ints(match[2])))
    return tuple(found)


def _ints(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "").split(",") if part)
