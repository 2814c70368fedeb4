"""A profile as one page of HTML that needs nothing else: no network, no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profiling._profile.show import ratio_text
from profiling._report.html_data import columns
from profiling._report.html_figures import Figure
from profiling._report.html_page import render
from profiling._report.show_words import percent, seconds_text

_SCRIPTS = (
    "start.js",
    "format.js",
    "facts.js",
    "table.js",
    "lanes.js",
    "timeline_input.js",
    "timeline.js",
    "profile_tables.js",
    "theme.js",
    "profile.js",
)
_MOST_OPS = 2000
_MEASURED = "measured"
PARTS = (
    ("compute", "compute_s"),
    ("exposed communication", "exposed_s"),
    ("gaps inside programs", "gap_s"),
    ("waiting for input", "input_s"),
    ("waiting for the host", "host_s"),
)
"""Where a step's time goes: a name for people, and the field."""


def html(document: Mapping[str, Any]) -> str:
    """Write the page of a profile.

    Args:
        document: What `Profile.as_json` gives, or the same read from a file.

    Returns:
        A whole page. It loads nothing, and its policy forbids it to.
    """
    device = document["event_device"]
    steps = document["steps"]
    return render(
        "profile.html.j2",
        _SCRIPTS,
        _data(document),
        name=document["program"] or "Profile",
        subtitle=_subtitle(document),
        figures=_figures(document),
        verdict=document["verdict"],
        notes=document["notes"],
        parts=_parts(document["spent"]),
        steps=[(s["number"], s["spent"]["step_s"], _parts(s["spent"])) for s in steps],
        longest_s=max(s["spent"]["step_s"] for s in steps),
        drawn=f"step {device['step']} of device {device['device']} of {device['host']}",
        host_bars=_host_bars(document),
        host_times=document["host_times"],
        hosts=document["hosts"] if len(document["hosts"]) > 1 else (),
        num_devices=document["num_devices"],
    )


def _subtitle(document: Mapping[str, Any]) -> list[str]:
    kind = document["device_kind"].upper()
    counts = f"{document['num_devices']} {kind} devices"
    if document["chip"]:
        counts += f" ({document['chip']})"
    if len(document["hosts"]) > 1:
        counts += f" on {len(document['hosts'])} hosts"
    parts = [counts]
    if document["mesh"]:
        axes = (f"{name} {size}" for name, size in document["mesh"].items())
        parts.append("mesh " + " × ".join(axes))
    return [*parts, f"from {document['source']}"]


def _figures(document: Mapping[str, Any]) -> list[Figure]:
    step, shares = document["step_s"], document["verdict"]["shares"]
    times = [s["spent"]["step_s"] for s in document["steps"] if s["is_counted"]]
    waiting = shares["input"] + shares["host"]
    exposed = document["spent"]["exposed_s"]
    total = sum(c["total_s"] for c in document["collectives"])
    found = [
        Figure(
            "Step time",
            seconds_text(step),
            f"median of {len(times)}; {seconds_text(min(times))} to "
            f"{seconds_text(max(times))}",
            _MEASURED,
        ),
        Figure(
            "Held up by",
            document["verdict"]["kind"].removesuffix("-bound"),
            f"compute {percent(shares['compute'])} of the step",
            _MEASURED,
        ),
        Figure(
            "Exposed communication",
            percent(shares["communication"]),
            f"of the step: {seconds_text(exposed)}, of {seconds_text(total)} that "
            f"collectives take",
            _MEASURED,
            share=shares["communication"],
        ),
        Figure(
            "Devices wait for their host",
            percent(waiting),
            f"of the step: {percent(shares['input'])} for input, "
            f"{percent(shares['host'])} for the rest",
            _MEASURED,
            share=waiting,
        ),
    ]
    if predicted := document["predicted_step_s"]:
        found.append(
            Figure(
                "Measured ÷ estimate",
                ratio_text(step / predicted),
                f"a step is estimated at {seconds_text(predicted)}",
                f"estimate for {document['target']}",
            )
        )
    return found


def _parts(spent: Mapping[str, float]) -> list[tuple[str, str, float, float]]:
    """Name, colour, seconds and share of what takes time in a step."""
    whole = spent["step_s"] or 1.0
    return [
        (name, field.removesuffix("_s"), spent[field], spent[field] / whole)
        for name, field in PARTS
        if spent[field] > 0
    ]


def _host_bars(document: Mapping[str, Any]) -> list[tuple[str, float, float, float]]:
    """What the host did in the drawn step: what, start and length in percent, time."""
    device, steps = document["event_device"], document["steps"]
    whole = next(s["spent"]["step_s"] for s in steps if s["number"] == device["step"])
    ends = (e["start_s"] + e["duration_s"] for e in document["events"])
    whole = max(whole, *ends) if document["events"] else whole
    return [
        (
            e["doing"],
            100 * e["start_s"] / whole,
            min(100.0, 100 * e["duration_s"] / whole),
            e["duration_s"],
        )
        for e in document["host_events"]
        if e["duration_s"] > 0
    ]


def _data(document: Mapping[str, Any]) -> dict[str, Any]:
    device = document["event_device"]["step"]
    step = next(s for s in document["steps"] if s["number"] == device)
    return {
        "name": document["program"],
        "collectives": columns(
            [{**c, "step_wire_bytes": c["wire_bytes"]} for c in document["collectives"]]
        ),
        "classes": columns(document["op_classes"]),
        "ops": columns(document["ops"][:_MOST_OPS]),
        "num_ops": len(document["ops"]),
        "step_s": document["spent"]["step_s"],
        "timeline": {
            "step_s": step["spent"]["step_s"],
            "events": columns(_events(document["events"])),
        },
    }


def _events(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Times become nanoseconds: what profilers record is no finer."""
    names = ("name", "stream", "kind", "num_runs", "module", "phase")
    return [
        {
            "start_ns": round(event["start_s"] * 1e9, 1),
            "duration_ns": round(event["duration_s"] * 1e9, 1),
            **{name: event[name] for name in names},
        }
        for event in events
    ]
