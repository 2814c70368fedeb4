"""The figures at the top of a page, each with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiling._report.show_words import mfu_flops_text, percent, seconds_text
from spmd._program.summary import bytes_text

_WORST_EXPOSED = 0.1
"""Share of a step that waits for communication, from which on it is marked."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure at the top of the page.

    Attributes:
        label: What it is.
        value: The figure itself.
        detail: What it is made of.
        origin: ``estimate``, or who compiled it for what.
        share: Of a whole, to draw as a bar; None without one.
        is_bad: To be marked.
    """

    label: str
    value: str
    detail: str
    origin: str
    share: float | None = None
    is_bad: bool = False

    @property
    def is_estimate(self) -> bool:
        """Nothing compiled or ran that gave this figure."""
        return self.origin.startswith("estimate")


def figures(document: Mapping[str, Any]) -> list[Figure]:
    """Time, utilisation, exposed share, memory and wire bytes, as far as known.

    Args:
        document: What `Schedule.as_json` gives.

    Returns:
        The figures in the order in which they are shown.
    """
    found: list[Figure] = []
    if timeline := document.get("timeline"):
        found += _of_timeline(timeline, document.get("target"))
    if memory := document.get("memory"):
        found.append(_peak(memory, document))
    found.append(_wire(document))
    return found


def compiled_by(document: Mapping[str, Any]) -> str:
    """Where the figures of a compiler come from.

    Args:
        document: What `Schedule.as_json` gives.

    Returns:
        Such as ``compiled for h100:2x8 by jax 0.10.2``.

    Example:
        >>> compiled_by({"target": {"text": "cpu:8"}, "versions": {"jaxlib": "0.10.2"}})
        'compiled for cpu:8 by jaxlib 0.10.2'
        >>> compiled_by({"source": "dump"})
        'read from dump'
    """
    versions = dict(document.get("versions") or {})
    target = document.get("target")
    if versions and target:
        versions.pop("compiler", None) if len(versions) > 1 else None
        by = ", ".join(f"{name} {version}" for name, version in versions.items())
        return f"compiled for {target['text']} by {by}"
    source = document.get("source") or ""
    return f"read from {source}" if source else "read from a module"


def subtitle(document: Mapping[str, Any]) -> list[str]:
    """Target, mesh and source in a few words each.

    Args:
        document: What `Schedule.as_json` gives.

    Returns:
        The parts that are known.
    """
    parts = []
    if target := document.get("target"):
        counts = f"{target['num_devices']} × {target['about']}"
        if target["num_hosts"] > 1:
            counts += f" on {target['num_hosts']} hosts"
        parts.append(f"target {target['text']}: {counts}")
    if mesh := document.get("mesh"):
        axes = zip(mesh["axis_names"], mesh["shape"], strict=True)
        dcn = mesh.get("dcn_axes") or ()
        parts.append(
            "mesh "
            + " × ".join(f"{a} {n}{' (dcn)' if a in dcn else ''}" for a, n in axes)
        )
    if source := document.get("source"):
        parts.append(f"from {source}")
    return parts


def _of_timeline(
    timeline: Mapping[str, Any], target: Mapping[str, Any] | None
) -> list[Figure]:
    step, exposed = timeline["step_s"], timeline["exposed_s"]
    origin = "estimate" + (f" for {target['text']}" if target else "")
    share = exposed / step if step else 0.0
    mfu = timeline.get("mfu") or 0.0
    return [
        Figure(
            "Step time",
            seconds_text(step),
            f"compute {seconds_text(timeline['compute_s'])}, "
            f"communication {seconds_text(timeline['communication_s'])}, "
            f"of it {seconds_text(timeline['hidden_s'])} hidden",
            origin,
        ),
        Figure(
            "Model FLOP/s utilisation",
            percent(mfu),
            f"{mfu_flops_text(timeline['flops'], timeline.get('model_flops'))}, whose "
            f"peak is {timeline['peak_flops'] / 1e12:.4g} TFLOP/s",
            origin,
            share=mfu,
        ),
        Figure(
            "Exposed communication",
            percent(share),
            f"of the step: {seconds_text(exposed)} in which compute waits; a matmul "
            f"runs meanwhile for {percent(timeline['matmul_overlap_share'])} of the "
            "bytes sent",
            origin,
            share=share,
            is_bad=share > _WORST_EXPOSED,
        ),
    ]


def _peak(memory: Mapping[str, Any], document: Mapping[str, Any]) -> Figure:
    peak, capacity = memory["peak_bytes"], memory.get("capacity_bytes")
    over = memory["total_bytes"] - (capacity or memory["total_bytes"])
    parts = [
        f"arguments {bytes_text(memory['argument_bytes'])}",
        f"temporaries {bytes_text(memory['temp_bytes'])}",
    ]
    if not capacity:
        parts.append("capacity not known")
    elif over > 0:
        parts.insert(0, f"needs {bytes_text(over)} more than {bytes_text(capacity)}")
    else:
        parts.insert(0, f"{percent(peak / capacity)} of {bytes_text(capacity)}")
    return Figure(
        "Peak memory of a device",
        bytes_text(peak),
        ", ".join(parts),
        compiled_by(document) if memory["origin"] == "compiled" else "estimate",
        share=peak / capacity if capacity else None,
        is_bad=over > 0,
    )


def _wire(document: Mapping[str, Any]) -> Figure:
    by_link: dict[str, int] = {}
    collectives = document.get("collectives") or ()
    for collective in collectives:
        link = collective.get("link") or ""
        by_link[link] = by_link.get(link, 0) + collective["step_wire_bytes"]
    runs = sum(c["num_runs"] for c in collectives)
    parts = [
        f"{link or 'link not known'} {bytes_text(count)}"
        for link, count in sorted(by_link.items(), key=lambda item: -item[1])
    ]
    parts.append(f"{len(collectives)} collectives, run {runs} times")
    return Figure(
        "Sent by a device in a step",
        bytes_text(sum(by_link.values())),
        "; ".join(parts),
        compiled_by(document),
    )
