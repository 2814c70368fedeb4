"""Write a plane of a profile."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from profiling._profile.xplane import Value
from profiling._profile.xplane_proto import PlaneParts, SpaceParts, XLine

_FIELDS: dict[type, str] = {
    str: "str_value",
    bytes: "bytes_value",
    float: "double_value",
}
_SIGNED = 1 << 63


class PlaneWriter:
    """A plane that is being made: lines are filled, and `bytes` closes it.

    Args:
        name: Of the plane.
        number: Tells it from others in a viewer, which puts equal ones into one.
        stats: What is said about it.
    """

    def __init__(
        self, name: str, *, number: int = 0, stats: Mapping[str, Value] | None = None
    ) -> None:
        self._parts = PlaneParts(id=number, name=name)
        self._events: dict[Hashable, int] = {}
        self._stats: dict[str, int] = {}
        self._lines: list[Any] = []
        self.put(self._parts.stats, stats or {})

    def line(self, name: str, *, number: int, start_ps: int = 0) -> Any:
        """Add a line.

        Args:
            name: Of the line.
            number: Tells it from others of the plane.
            start_ps: Whole nanoseconds, from which its events count.

        Returns:
            An `XLine`, to whose ``events`` events are added.
        """
        line = XLine(id=number, name=name, timestamp_ns=start_ps // 1000)
        self._lines.append(line)
        return line

    def event_id(
        self,
        name: str,
        *,
        key: Hashable = None,
        display_name: str = "",
        stats: Mapping[str, Value] | None = None,
    ) -> int:
        """Number of the events of a kind.

        Args:
            name: Of the events.
            key: Tells kinds apart; default the name.
            display_name: A short name.
            stats: What all of them have in common. What a kind was first given counts.

        Returns:
            Its ``metadata_id``.
        """
        key = name if key is None else key
        number = self._events.get(key)
        if number is None:
            number = self._events[key] = len(self._events) + 1
            entry = self._parts.event_metadata.add(key=number)
            entry.value.id = number
            entry.value.name = name
            entry.value.display_name = display_name
            self.put(entry.value.stats, stats or {})
        return number

    def stat_id(self, name: str) -> int:
        """Number of a stat.

        Args:
            name: Of the stat.

        Returns:
            Its ``metadata_id``.
        """
        number = self._stats.get(name)
        if number is None:
            number = self._stats[name] = len(self._stats) + 1
            entry = self._parts.stat_metadata.add(key=number)
            entry.value.id = number
            entry.value.name = name
        return number

    def put(self, into: Any, stats: Mapping[str, Value]) -> None:
        """Add stats to a message.

        Args:
            into: Its list of stats.
            stats: By name.
        """
        for name, value in stats.items():
            stat = into.add(metadata_id=self.stat_id(name))
            large = isinstance(value, int) and value >= _SIGNED
            wanted = (
                "uint64_value" if large else _FIELDS.get(type(value), "int64_value")
            )
            setattr(stat, wanted, value)

    def bytes(self) -> bytes:
        """The plane.

        Returns:
            It, serialised.
        """
        del self._parts.lines[:]
        self._parts.lines.extend(line.SerializeToString() for line in self._lines)
        return self._parts.SerializeToString()


def with_planes(space: bytes, planes: Iterable[bytes], *, warning: str = "") -> bytes:
    """Add planes to a profile.

    Args:
        space: A serialised ``XSpace``.
        planes: Serialised planes.
        warning: Shown to who looks at the profile.

    Returns:
        Both, of which protobuf makes one message.
    """
    more = SpaceParts(planes=planes, warnings=[warning] if warning else [])
    return space + more.SerializeToString()
