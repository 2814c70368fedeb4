"""`Side`: what is compared of a step, from a schedule or from the JSON of one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from profiling._collectives.collective import Collective, Moved, Role
from profiling._collectives.totals import totals
from profiling._memory.use import HeldTensor

if TYPE_CHECKING:
    from profiling._schedule import Schedule

Noun = TypeVar("Noun")

FIGURES = (
    "wire_bytes",
    "num_collectives",
    "num_runs",
    "memory_bytes",
    "argument_bytes",
    "temp_bytes",
    "over_bytes",
    "step_s",
    "exposed_s",
)
"""What a step is measured by; bytes of one device, seconds by estimate."""
BY_ROLE = ("wire_bytes", "num_collectives", "num_runs", "exposed_s")
"""Figures that there are for one role too, such as ``wire_bytes:activation``."""
ROLES: tuple[str, ...] = get_args(Role)

_FORMAT = 1
_START = re.compile(rb"\s*\{")
_LOOK = 256


@dataclass(frozen=True, slots=True, repr=False)
class Side:
    """What is compared of a step.

    Attributes:
        name: Of the program.
        target: Text of what it is for; empty where nobody said.
        mesh: Text of the mesh, such as ``fsdp=4, tensor=2``; empty without.
        flags: XLA flags it was compiled with.
        collectives: In the order in which they start.
        tensors: Every input.
        figures: By the names in `FIGURES`; None where one is not known.
    """

    name: str
    target: str
    mesh: str
    flags: Mapping[str, object]
    collectives: tuple[Collective, ...]
    tensors: tuple[HeldTensor, ...]
    figures: Mapping[str, float | None]

    def __post_init__(self) -> None:
        for name in ("flags", "figures"):
            view = MappingProxyType(dict(getattr(self, name)))
            object.__setattr__(self, name, view)

    def figure(self, name: str) -> float | None:
        """One figure.

        Args:
            name: One of `FIGURES`, or one of `BY_ROLE`, a colon and a role.

        Returns:
            The figure; None where it is not known.

        Raises:
            KeyError: There is no such figure.
        """
        base, colon, role = name.partition(":")
        if not colon:
            return self.figures[base]
        if base not in BY_ROLE or role not in ROLES:
            raise KeyError(name)
        if base == "exposed_s" and self.figures[base] is None:
            return None
        field = "step_wire_bytes" if base == "wire_bytes" else base
        found = [t for t in totals(self.collectives, "role") if t.key == role]
        return sum(getattr(t, field) or 0 for t in found)

    def __repr__(self) -> str:
        where = f" on {self.target}" if self.target else ""
        return f"Side({self.name!r}{where}, {len(self.collectives)} collectives)"


def side_of(schedule: Schedule) -> Side:
    """What is compared of a schedule.

    Args:
        schedule: The schedule.

    Returns:
        The side.
    """
    memory, target, mesh = schedule.memory, schedule.target, schedule.mesh
    shape = {} if mesh is None else _shape(mesh.axis_names, mesh.shape)
    return _side(
        schedule.name,
        "" if target is None else target.text,
        shape,
        schedule.flags,
        schedule.collectives,
        memory.tensors,
        {name: getattr(memory, name) for name in _MEMORY},
        (schedule.step_s, schedule.exposed_s),
    )


def is_json(path: Path) -> bool:
    """Whether a file starts as a JSON object does, which no HLO and no program does.

    Args:
        path: A file or a directory.

    Returns:
        Whether.

    Raises:
        OSError: It cannot be read.
    """
    if path.is_dir():
        return False
    with path.open("rb") as file:
        return _START.match(file.read(_LOOK)) is not None


def sides_from_json(path: Path) -> tuple[Side, ...]:
    """Read what ``spmd inspect --json`` or `Schedule.as_json` gave.

    Args:
        path: The file.

    Returns:
        A side for each schedule.

    Raises:
        OSError: It cannot be read.
        ValueError: No JSON, another form, or no schedule in it; says where.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: damaged or cut short: {error}") from error
    try:
        each = data["schedules"] if "schedules" in data else [data]
        found = tuple(_from_data(item) for item in each)
        failed = "; ".join(f["message"] for f in data.get("failures", ()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: not what spmd inspect --json writes, format {_FORMAT} "
            f"({type(error).__name__}: {error}); write it again with that command"
        ) from error
    if not found:
        raise ValueError(f"{path}: no schedule in it; {failed or 'nothing compiled'}")
    return found


_MEMORY = ("argument_bytes", "temp_bytes", "total_bytes", "capacity_bytes")


def _from_data(data: Mapping[str, Any]) -> Side:
    if data["format"] != _FORMAT:
        raise ValueError(f"its format is {data['format']}")
    memory, line, mesh = data["memory"], data["timeline"], data["mesh"]
    shape = {} if mesh is None else _shape(mesh["axis_names"], mesh["shape"])
    found = []
    for item in data["collectives"]:
        moved = tuple(_made(Moved, m) for m in item["moved"])
        known = {**item, "moved": moved, "axes": tuple(item["axes"])}
        found.append(_made(Collective, known))
    tensors = tuple(
        _made(HeldTensor, {**t, "shape": tuple(t["shape"]), "spec": _spec(t["spec"])})
        for t in memory["tensors"]
    )
    return _side(
        data["name"],
        "" if data["target"] is None else data["target"]["text"],
        shape,
        data["flags"],
        tuple(found),
        tensors,
        {name: memory[name] for name in _MEMORY},
        (None, None) if line is None else (line["step_s"], line["exposed_s"]),
    )


def _shape(names: Sequence[str], sizes: Sequence[int]) -> dict[str, int]:
    return dict(zip(names, sizes, strict=True))


def _made(noun: type[Noun], data: Mapping[str, Any]) -> Noun:
    """A noun of the fields it has; what else the data has is left out."""
    names = [f.name for f in fields(noun)]  # pyright: ignore[reportArgumentType] - dataclasses only
    return noun(**{name: data[name] for name in names})


def _spec(spec: Any) -> Any:
    if spec is None:
        return None
    return tuple(tuple(e) if isinstance(e, list) else e for e in spec)


def _side(
    name: str,
    target: str,
    mesh: Mapping[str, int],
    flags: Mapping[str, object],
    collectives: tuple[Collective, ...],
    tensors: tuple[HeldTensor, ...],
    memory: Mapping[str, int | None],
    times: tuple[float | None, float | None],
) -> Side:
    total, capacity = memory["total_bytes"] or 0, memory["capacity_bytes"]
    values = (
        sum(c.step_wire_bytes for c in collectives),
        len(collectives),
        sum(c.num_runs for c in collectives),
        total,
        memory["argument_bytes"],
        memory["temp_bytes"],
        0 if capacity is None else max(0, total - capacity),
        *times,
    )
    text = ", ".join(f"{axis}={size}" for axis, size in mesh.items())
    figures: dict[str, float | None] = dict(zip(FIGURES, values, strict=True))
    return Side(name, target, text, flags, collectives, tensors, figures)
