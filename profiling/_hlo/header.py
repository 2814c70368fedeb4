"""Read the head of an HLO text: the module's line, and its table of call stacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from profiling._hlo.attributes import split, unquoted
from profiling._hlo.damage import TextFault
from profiling._hlo.module import Alias, Computation, Frame, Module

T = TypeVar("T")

_MODULE = re.compile(r"\s*HloModule\s+([^\s,]+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ROW = re.compile(r"\s*(\d+)\s+(.*\S)\s*$")
_ITEM = re.compile(r"(\w+)=(-?\d+)")
_ALIAS = re.compile(
    r"\{([\d,\s]*)\}:\s*\((\d+)(?:,\s*\{([\d,\s]*)\})?(?:,\s*(may|must)-alias)?\)"
)
_DONOR = re.compile(r"\((\d+),\s*\{([\d,\s]*)\}\)")
_FRONTEND = re.compile(r"([\w.\-]+)=(\"(?:[^\"\\]|\\.)*\")")


@dataclass(frozen=True, slots=True)
class Header:
    """What the first line says of a module."""

    name: str
    is_scheduled: bool = False
    aliases: tuple[Alias, ...] = ()
    donors: tuple[tuple[int, tuple[int, ...]], ...] = ()
    num_partitions: int = 1
    num_replicas: int = 1
    frontend_attributes: tuple[tuple[str, str], ...] = ()

    def module(
        self,
        computations: tuple[Computation, ...],
        entry: Computation,
        frames: tuple[Frame, ...],
        source: str,
    ) -> Module:
        """The module with this head.

        Args:
            computations: Its computations.
            entry: The one it starts with.
            frames: Its call stacks.
            source: File.

        Returns:
            The module.
        """
        return Module(
            self.name,
            computations,
            entry,
            self.is_scheduled,
            self.aliases,
            self.donors,
            self.num_partitions,
            self.num_replicas,
            frames,
            self.frontend_attributes,
            source,
        )


def read_header(
    lines: Iterator[str],
) -> tuple[Header, tuple[Frame, ...], tuple[str, ...]]:
    """Read until the first computation.

    Args:
        lines: Lines of the text that are not blank.

    Returns:
        Head, call stacks, and the line that was read too many, if there is one.

    Raises:
        TextFault: Text that does not start as a module does.
    """
    first = next(lines, "")
    match = _MODULE.match(first)
    if match is None:
        raise TextFault("no HLO text: 'HloModule name, ...' is expected first", 0)
    header = _header(match[1], first[match.end() :], match.end())
    tables: dict[str, list[str]] = {name: [] for name in _TABLES}
    rows: list[str] | None = None
    for line in lines:
        if line.strip() in tables:
            rows = tables[line.strip()]
            continue
        row = _ROW.match(line) if rows is not None else None
        if rows is None or row is None:
            return header, _frames(tables), (line,)
        if int(row[1]) != len(rows) + 1:
            raise TextFault(f"row {len(rows) + 1} of this table is expected here", 0)
        rows.append(row[2])
    return header, _frames(tables), ()


def _header(name: str, rest: str, offset: int) -> Header:
    fields: dict[str, str] = {}
    try:
        fields = {key: value for key, value, _ in split(rest)}
    except TextFault as fault:
        raise TextFault(fault.problem, offset + fault.at) from None

    def count(key: str) -> int:
        value = fields.get(key, "1")
        if not re.fullmatch(r"[1-9][0-9]{0,8}", value):
            at = offset + rest.find(key)
            raise TextFault(f"{key} must be a positive number, not {value[:40]!r}", at)
        return int(value)

    return Header(
        name,
        fields.get("is_scheduled") == "true",
        tuple(
            Alias(_ints(out), int(number), _ints(index), kind == "must")
            for out, number, index, kind in _ALIAS.findall(
                fields.get("input_output_alias", "")
            )
        ),
        tuple(
            (int(number), _ints(index))
            for number, index in _DONOR.findall(fields.get("buffer_donor", ""))
        ),
        count("num_partitions"),
        count("replica_count"),
        tuple(
            sorted(
                (key, unquoted(value))
                for key, value in _FRONTEND.findall(
                    fields.get("frontend_attributes", "")
                )
            )
        ),
    )


def _frames(tables: dict[str, list[str]]) -> tuple[Frame, ...]:
    files = [unquoted(row) for row in tables["FileNames"]]
    functions = [unquoted(row) for row in tables["FunctionNames"]]
    locations = [_items(row) for row in tables["FileLocations"]]
    stacks = [_items(row) for row in tables["StackFrames"]]
    # XLA's text counts parents one higher than its proto, 1 for "none": the outermost
    # frame is then its own parent, as `1 {file_location_id=1 parent_frame_id=1}`.
    shift = 1 if all(s.get("parent_frame_id", 0) > 0 for s in stacks) else 0
    found = []
    for stack in stacks:
        place = _row(locations, stack.get("file_location_id", 0)) or {}
        found.append(
            Frame(
                _row(files, place.get("file_name_id", 0)) or "",
                _row(functions, place.get("function_name_id", 0)) or "",
                place.get("line", 0),
                stack.get("parent_frame_id", 0) - shift - 1,
            )
        )
    return tuple(found)


def _items(row: str) -> dict[str, int]:
    return {key: int(value) for key, value in _ITEM.findall(row)}


def _row(rows: list[T], number: int) -> T | None:
    return rows[number - 1] if 0 < number <= len(rows) else None


def _ints(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.replace(",", " ").split()))
