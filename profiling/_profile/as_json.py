"""A `Profile` as data; `schema/profile.json` describes the form."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiling._profile.profile import Profile

FORMAT = 1
"""Raised when a field goes or comes to mean something else; new ones may come."""

_COMPUTED = {
    "op_classes": ("ratio",),
    "collectives": ("hidden_s", "wait_s", "bytes_per_s", "ratio"),
}


def as_json(profile: Profile) -> dict[str, Any]:
    """Everything about a profile but its schedule, of which the figures it gives.

    Args:
        profile: The profile.

    Returns:
        Dicts, lists, strings, numbers, bools and None.
    """
    rows = {
        name: [_row(row, _COMPUTED.get(name, ())) for row in getattr(profile, name)]
        for name in (
            "hosts",
            "steps",
            "op_classes",
            "ops",
            "collectives",
            "host_times",
            "events",
            "host_events",
        )
    }
    host, device, number = profile.event_device
    schedule = profile.schedule
    mesh = None if schedule is None else schedule.mesh
    target = None if schedule is None else schedule.target
    return {
        "format": FORMAT,
        "source": profile.source,
        "device_kind": profile.device_kind,
        "chip": profile.chip,
        "program": profile.program,
        "num_devices": profile.num_devices,
        "step_s": profile.step_s,
        "spread_s": profile.spread_s,
        "predicted_step_s": profile.predicted_step_s,
        "target": None if target is None else target.text,
        "mesh": None if mesh is None else mesh.sizes,
        "spent": asdict(profile.spent),
        "verdict": {
            "kind": profile.verdict.kind,
            "why": profile.verdict.why,
            "shares": dict(profile.verdict.shares),
        },
        **rows,
        "event_device": {"host": host, "device": device, "step": number},
        "notes": list(profile.notes),
    }


def _row(row: Any, computed: tuple[str, ...]) -> dict[str, Any]:
    found = {f.name: getattr(row, f.name) for f in fields(row)}
    found.update((name, getattr(row, name)) for name in computed)
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    """Lists for tuples, dicts for what has fields or is a view."""
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if hasattr(value, "items") else value
