"""A `Schedule` as data; `schema/schedule.json` describes the form."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, get_args

from profiling._collectives.collective import Collective
from profiling._collectives.totals import By
from profiling._compiling.compiled import CompileError
from profiling._memory.use import MemoryUse
from profiling._timeline.timeline import Timeline
from spmd._meshes.mesh import Mesh

if TYPE_CHECKING:
    from profiling._schedule import Schedule

FORMAT = 1
"""Raised when a field goes or comes to mean something else; new ones may come."""

_OF_MOST = ("role", "phase", "tensor", "module", "source")


def as_json(schedule: Schedule) -> dict[str, Any]:
    """Everything about a schedule but its module.

    Args:
        schedule: The schedule.

    Returns:
        Dicts, lists, strings, numbers, bools and None.
    """
    return {
        "format": FORMAT,
        "name": schedule.name,
        "source": schedule.source,
        "mesh": None if schedule.mesh is None else _mesh(schedule.mesh),
        "target": None if schedule.target is None else schedule.target.as_json(),
        "memory": _memory(schedule.memory),
        "collectives": [_collective(c) for c in schedule.collectives],
        "totals": {
            f"by_{by}": [asdict(t) for t in schedule.totals(by)] for by in get_args(By)
        },
        "timeline": (
            None if schedule.timeline is None else _timeline(schedule.timeline)
        ),
        "flags": dict(schedule.flags),
        "versions": dict(schedule.versions),
        "compile_s": schedule.compile_s,
        "warnings": list(schedule.warnings),
        "notes": list(schedule.notes),
    }


def error_as_json(error: CompileError) -> dict[str, Any]:
    """Everything about a compile that failed.

    Args:
        error: The error.

    Returns:
        Dicts, strings, numbers and None.
    """
    return {
        "target": error.target.text,
        "kind": error.kind,
        "message": str(error),
        "words": error.words,
        "over_bytes": error.over_bytes,
        "holders": dict(error.holders),
    }


@cache
def schema(name: str = "schedule") -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of what this module writes.

    Args:
        name: ``schedule``; ``inspect`` for what the command writes; ``diff``,
            ``explain`` or ``profile``.

    Returns:
        The schema; not to be changed.
    """
    path = files("profiling") / "schema" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _mesh(mesh: Mesh) -> dict[str, Any]:
    return {
        "axis_names": list(mesh.axis_names),
        "shape": list(mesh.shape),
        "dcn_axes": list(mesh.dcn_axes),
    }


def _memory(memory: MemoryUse) -> dict[str, Any]:
    plain = ("argument_bytes_by_role", "tensors", "at_peak")
    found = {f.name: getattr(memory, f.name) for f in fields(memory)}
    return {
        **{name: value for name, value in found.items() if name not in plain},
        "argument_bytes_by_role": dict(memory.argument_bytes_by_role),
        "tensors": [_plain(asdict(t)) for t in memory.tensors],
        "at_peak": [asdict(b) for b in memory.at_peak],
        "replicated": [_plain(asdict(t)) for t in memory.replicated],
    }


def _collective(collective: Collective) -> dict[str, Any]:
    return {
        **_plain(asdict(collective)),
        "step_wire_bytes": collective.step_wire_bytes,
        **{name: getattr(collective, name) for name in _OF_MOST},
    }


def _timeline(timeline: Timeline) -> dict[str, Any]:
    found = {f.name: getattr(timeline, f.name) for f in fields(timeline)}
    return {
        **found,
        "events": [asdict(e) for e in timeline.events],
        "overlaps": {name: asdict(o) for name, o in timeline.overlaps.items()},
        "mfu": timeline.mfu,
    }


def _plain(value: Any) -> Any:
    """Lists for tuples, all the way down."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
