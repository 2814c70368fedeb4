"""Read a profile, an `XSpace`: planes of lines of events, one line at a time.

Nothing native but protobuf is called: a damaged file is an error with its byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from profiling._hlo.damage import in_bytes
from profiling._hlo.wire import WireFault, apart
from profiling._profile.xplane_proto import LineParts, PlaneParts, SpaceParts, XStat

Value: TypeAlias = float | int | str | bytes

_PLANES, _LINES = 1, 3  # numbers of the two big lists
_DAMAGED = "no profile, or a damaged one"
_PART = "a part that no profiler would write, or a name that is no UTF-8"
_KNOWN = ("/host:", "/device:", "/virtualdevice:", "Task Environment", "#Chip")
_UNIQUE = frozenset(("_p", "_c"))
"""Stats that number a hand-over between threads: no two events have the same."""

_COUNTS = frozenset((3 << 3, 4 << 3))  # tags of uint64 and int64


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
        plane = self._plane
        known = plane.known
        found = dict(plane.shared.get(self._raw.metadata_id, ()))
        for data in self._raw.stats:  # looked up here: this is most of reading
            name, value = known.get(data) or plane.stat(data)
            if value is not None:
                found[name] = value
        return found

    def stat(self, wanted: str) -> Value | None:
        """One of its own stats.

        Args:
            wanted: Its name.

        Returns:
            Its value; None if it has none.
        """
        plane = self._plane
        for data in self._raw.stats:
            name, value = plane.known.get(data) or plane.stat(data)
            if name == wanted:
                return value
        return None


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
        known: Stats that were taken apart before, by their bytes.
    """

    name: str
    stats: Mapping[str, Value]
    names: Mapping[int, tuple[str, str]]
    shared: Mapping[int, Mapping[str, Value]]
    _stat_names: Mapping[int, str]
    _data: bytes
    _lines: tuple[tuple[int, int], ...]
    _source: str
    known: dict[bytes, tuple[str, Value | None]] = field(default_factory=dict)

    def lines(self, skip: Callable[[str], bool] | None = None) -> Iterator[Line]:
        """Read its lines, one at a time.

        Args:
            skip: Tells by its name that an event is not wanted.

        Yields:
            Lines in the order of the file.

        Raises:
            ValueError: Bytes that are no line; says where.
        """
        names = self.names.items()
        skipped = {n for n, (name, _) in names if skip is not None and skip(name)}
        for start, end in self._lines:
            parsed = _parsed(LineParts, self._data[start:end], start, self._source)
            first = parsed.timestamp_ns * 1000
            yield Line(
                parsed.display_name or parsed.name,
                tuple(
                    [
                        Event(self, raw, first)
                        for raw in parsed.events
                        if raw.metadata_id not in skipped
                    ]
                ),
            )

    def stat(self, data: bytes) -> tuple[str, Value | None]:
        """Take one stat apart.

        Args:
            data: A serialised `XStat`.

        Returns:
            Its name, and its value: a reference is looked up, and of a kind that is
            not known there is None.

        Raises:
            ValueError: Bytes that are no stat; says where.
        """
        if 3 < len(data) < 12 and data[0] == 8 and data[2] in _COUNTS:
            name = self._stat_names.get(data[1], "")
            if name in _UNIQUE:  # numbers without end: not kept, so made quick
                return name, _count(data[3:])
        try:
            stat = XStat.FromString(data)
        except DecodeError:
            at = max(0, self._data.find(data))
            raise in_bytes(self._source, f"{_DAMAGED}: {_PART}", offset=at) from None
        found = self.named(stat)
        if found[0] not in _UNIQUE:
            self.known[data] = found
        return found

    def named(self, stat: Any) -> tuple[str, Value | None]:
        """Name and value of a stat.

        Args:
            stat: The message.

        Returns:
            As `stat` gives them.
        """
        name = self._stat_names.get(stat.metadata_id, "")
        kind = stat.WhichOneof("value")
        if kind is None:
            return name, None
        if kind == "ref_value":
            return name, self._stat_names.get(stat.ref_value, "")
        return name, getattr(stat, kind)

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
    return parse_space(Path(path).read_bytes(), source=str(path))


def parse_space(data: bytes, *, source: str) -> Space:
    """Read a profile that is in memory.

    Args:
        data: A serialised `XSpace`.
        source: What errors call it.

    Returns:
        The space; lines are read when asked for.

    Raises:
        ValueError: Damaged, cut short, or no profile; says where.
    """
    if not data:
        raise in_bytes(source, "no profile: the file is empty", offset=0)
    try:
        small, planes = apart(data, 0, len(data), _PLANES)
        parts = _parsed(SpaceParts, small, 0, source)
        found = tuple(_plane(data, start, end, source) for start, end in planes)
    except WireFault as fault:
        raise in_bytes(
            source, f"{_DAMAGED}: {fault.problem}", offset=fault.at
        ) from None
    if not any(plane.name.startswith(_KNOWN) for plane in found):
        names = ", ".join(repr(plane.name) for plane in found[:3]) or "none"
        raise ValueError(
            f"{source}: no profile: its planes are {names}, and a profile "
            f"(*.xplane.pb) has /host:CPU, /device:GPU:0, /device:TPU:0 or the like"
        )
    return Space(source, next(iter(parts.hostnames), ""), found, tuple(parts.errors))


def _plane(data: bytes, start: int, end: int, source: str) -> Plane:
    small, lines = apart(data, start, end, _LINES)
    parts = _parsed(PlaneParts, small, start, source)
    names = {entry.key: entry.value.name for entry in parts.stat_metadata}
    events = {
        entry.key: (entry.value.name, entry.value.display_name)
        for entry in parts.event_metadata
    }
    shared: dict[int, Mapping[str, Value]] = {}
    stats: dict[str, Value] = {}
    plane = Plane(parts.name, stats, events, shared, names, data, tuple(lines), source)
    stats.update(_values(plane, parts.stats))
    for entry in parts.event_metadata:
        if entry.value.stats:
            shared[entry.key] = dict(_values(plane, entry.value.stats))
    return plane


def _count(varint: bytes) -> int:
    value = 0
    for byte in reversed(varint):
        value = value << 7 | byte & 0x7F
    return value


def _values(plane: Plane, stats: Any) -> Iterator[tuple[str, Value]]:
    for name, value in map(plane.named, stats):
        if value is not None:
            yield name, value


def _parsed(kind: Any, data: bytes, start: int, source: str) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise in_bytes(source, f"{_DAMAGED}: {_PART}", offset=start) from None
