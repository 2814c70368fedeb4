"""Read a profile, an `XSpace`: planes of lines of events, one line at a time.

Nothing native but protobuf is called: a damaged file is an error with its byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from profiling._hlo.damage import in_bytes
from profiling._hlo.wire import WireFault, fields
from profiling._profile.xplane_proto import PlaneParts, SpaceParts, XLine

Value: TypeAlias = float | int | str | bytes

_PLANES, _LINES = 1, 3  # numbers of the two big lists
_KNOWN = ("/host:", "/device:", "/virtualdevice:", "Task Environment", "#Chip")


class Event:
    """Something that took time on a line.

    Attributes:
        name: What it is; on a TPU the whole instruction as text.
        display_name: A short name; empty where the profile gives none.
        start_ps: Picoseconds, on the clock of its host.
        duration_ps: How long it took; 0 for a moment.
    """

    __slots__ = ("_plane", "_raw", "display_name", "duration_ps", "name", "start_ps")

    def __init__(self, plane: Plane, raw: Any, line_ps: int) -> None:
        self._plane = plane
        self._raw = raw
        self.name, self.display_name = plane.names.get(raw.metadata_id, ("", ""))
        self.start_ps: int = line_ps + raw.offset_ps
        self.duration_ps: int = raw.duration_ps

    @property
    def end_ps(self) -> int:
        """When it ended."""
        return self.start_ps + self.duration_ps

    @property
    def metadata_id(self) -> int:
        """What events of one name share; 0 where the profile gives none."""
        return self._raw.metadata_id

    def stats(self) -> dict[str, Value]:
        """What is said about it, by name.

        Returns:
            Its own, over those of all events of its name.
        """
        found = dict(self._plane.shared.get(self._raw.metadata_id, {}))
        found.update(self._plane.values(self._raw.stats))
        return found


@dataclass(frozen=True, slots=True, repr=False)
class Line:
    """A thread, a stream, or one kind of thing that a device does.

    Attributes:
        name: Such as ``XLA Ops``.
        events: In the order of the file.
    """

    name: str
    events: tuple[Event, ...]

    def __repr__(self) -> str:
        return f"Line({self.name!r}, {len(self.events)} events)"


@dataclass(frozen=True, slots=True, repr=False)
class Plane:
    """A device, or the threads of a host.

    Attributes:
        name: Such as ``/device:TPU:0`` or ``/host:CPU``.
        stats: What is said about it, by name.
        names: Of its events, name and short name by number.
        shared: What all events of a number have in common, by name.
    """

    name: str
    stats: Mapping[str, Value]
    names: Mapping[int, tuple[str, str]]
    shared: Mapping[int, Mapping[str, Value]]
    _stat_names: Mapping[int, str]
    _data: bytes
    _lines: tuple[tuple[int, int], ...]
    _source: str

    def lines(self) -> Iterator[Line]:
        """Read its lines, one at a time.

        Yields:
            Lines in the order of the file.

        Raises:
            ValueError: Bytes that are no line; says where.
        """
        for start, end in self._lines:
            parsed = _parsed(XLine, self._data[start:end], start, self._source)
            first = parsed.timestamp_ns * 1000
            yield Line(
                parsed.display_name or parsed.name,
                tuple([Event(self, raw, first) for raw in parsed.events]),
            )

    def values(self, stats: Any) -> Iterator[tuple[str, Value]]:
        """Name and value of each of some stats.

        Args:
            stats: Messages.

        Yields:
            Name and value; a reference is looked up.
        """
        names = self._stat_names
        for stat in stats:
            kind = stat.WhichOneof("value")
            if kind is None:
                continue
            value = getattr(stat, kind)
            if kind == "ref_value":
                value = names.get(value, "")
            yield names.get(stat.metadata_id, ""), value

    def __repr__(self) -> str:
        return f"Plane({self.name!r}, {len(self._lines)} lines)"


@dataclass(frozen=True, slots=True, repr=False)
class Space:
    """One file of a profile: what one process and its devices did.

    Attributes:
        source: The file.
        host: Name of the machine; empty where the profile does not say.
        planes: Its planes.
        errors: What the profiler could not do.
    """

    source: str
    host: str
    planes: tuple[Plane, ...]
    errors: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        return f"Space({self.source!r}, {len(self.planes)} planes)"


def read_space(path: str | Path) -> Space:
    """Read one file of a profile.

    Args:
        path: ``*.xplane.pb``, as torch_xla and jax write it.

    Returns:
        The space; lines are read when asked for.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Damaged, cut short, or no profile; says where.
    """
    data = Path(path).read_bytes()
    source = str(path)
    if not data:
        raise in_bytes(source, "no profile: the file is empty", offset=0)
    try:
        small, planes = _apart(data, 0, len(data), _PLANES)
        parts = _parsed(SpaceParts, small, 0, source)
        found = tuple(_plane(data, start, end, source) for start, end in planes)
    except WireFault as fault:
        raise in_bytes(
            source, f"no profile, or a damaged one: {fault.problem}", offset=fault.at
        ) from None
    if not any(plane.name.startswith(_KNOWN) for plane in found):
        names = ", ".join(repr(plane.name) for plane in found[:3]) or "none"
        raise ValueError(
            f"{source}: no profile: its planes are {names}, and a profile "
            f"(*.xplane.pb) has /host:CPU, /device:GPU:0, /device:TPU:0 or the like"
        )
    return Space(source, next(iter(parts.hostnames), ""), found, tuple(parts.errors))


def _plane(data: bytes, start: int, end: int, source: str) -> Plane:
    small, lines = _apart(data, start, end, _LINES)
    parts = _parsed(PlaneParts, small, start, source)
    names = {entry.key: entry.value.name for entry in parts.stat_metadata}
    events = {
        entry.key: (entry.value.name, entry.value.display_name)
        for entry in parts.event_metadata
    }
    shared: dict[int, Mapping[str, Value]] = {}
    stats: dict[str, Value] = {}
    plane = Plane(parts.name, stats, events, shared, names, data, tuple(lines), source)
    stats.update(plane.values(parts.stats))
    for entry in parts.event_metadata:
        if entry.value.stats:
            shared[entry.key] = dict(plane.values(entry.value.stats))
    return plane


def _apart(
    data: bytes, start: int, end: int, apart: int
) -> tuple[bytes, list[tuple[int, int]]]:
    """A message without one of its lists, and where the items of that are."""
    small: list[bytes] = []
    items: list[tuple[int, int]] = []
    at = start
    for number, wire, first, last in fields(data, start, end):
        if number == apart and wire == 2:
            items.append((first, last))
        else:
            small.append(data[at:last])
        at = last
    return b"".join(small), items


def _parsed(kind: Any, data: bytes, start: int, source: str) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise in_bytes(
            source,
            "no profile, or a damaged one: a part that no profiler would write, or a "
            "name that is no UTF-8",
            offset=start,
        ) from None
