"""`Schedule`: what one compile gave: memory, collectives and a timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profiling._collectives.collective import Collective
from profiling._collectives.totals import By, Total, totals
from profiling._compiling.compiled import Compiled, FlagValue
from profiling._hlo.module import Module
from profiling._memory.use import MemoryUse
from profiling._targets.target import Target
from profiling._timeline.timeline import Timeline
from spmd._meshes.mesh import Mesh

_NOTHING_S = 1e-12  # less is rounding


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Schedule:
    """What a compiler did with a step.

    Attributes:
        name: Of the program.
        source: File or directory it was read from; empty if it was not.
        module: The module of one device as it runs.
        mesh: Mesh that axes are named by; None without.
        target: What it is for; None for a dump whose target nobody said.
        memory: What a device holds.
        collectives: In the order in which they start.
        timeline: An estimate; None without a target or an order.
        flags: XLA flags it was compiled with; empty for a dump.
        versions: Of what compiled it.
        compile_s: Seconds the compiler took; None for a dump.
        warnings: What the compiler warned of.
        notes: What is not known here, and which option gives it.
        compiled: What the compiler made; None for a dump.
    """

    name: str
    source: str
    module: Module
    mesh: Mesh | None
    target: Target | None
    memory: MemoryUse
    collectives: tuple[Collective, ...]
    timeline: Timeline | None
    flags: Mapping[str, FlagValue]
    versions: Mapping[str, str]
    compile_s: float | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    compiled: Compiled | None = None

    def __post_init__(self) -> None:
        for name in ("flags", "versions"):
            view = MappingProxyType(dict(getattr(self, name)))
            object.__setattr__(self, name, view)

    @property
    def wire_bytes(self) -> int:
        """Bytes one device sends in one step."""
        return sum(c.step_wire_bytes for c in self.collectives)

    @property
    def unknown_share(self) -> float:
        """Share of the wire bytes whose role is not known."""
        whole = self.wire_bytes
        unknown = sum(t.step_wire_bytes for t in self.totals("role") if _unknown(t))
        return unknown / whole if whole else 0.0

    @property
    def step_s(self) -> float | None:
        """Estimated time of a step; None without a timeline."""
        return None if self.timeline is None else self.timeline.step_s

    @property
    def exposed_s(self) -> float | None:
        """Estimated time in which compute waits; None without a timeline."""
        return None if self.timeline is None else self.timeline.exposed_s

    @property
    def over_bytes(self) -> int:
        """Bytes by which a device has too little; 0 where it fits or is not known."""
        capacity = self.memory.capacity_bytes
        return 0 if capacity is None else max(0, self.memory.total_bytes - capacity)

    def totals(self, by: By) -> tuple[Total, ...]:
        """Sums over the collectives that have something in common.

        Args:
            by: ``"role"``, ``"axes"``, ``"kind"``, ``"phase"`` or ``"link"``.

        Returns:
            Totals, most bytes first; their bytes add up to `wire_bytes`.
        """
        return totals(self.collectives, by)

    def largest(self, num: int = 10) -> tuple[Collective, ...]:
        """The collectives that send most in a step.

        Args:
            num: How many.

        Returns:
            At most so many, most bytes first.
        """
        ordered = sorted(self.collectives, key=lambda c: -c.step_wire_bytes)
        return tuple(ordered[:num])

    def most_exposed(self, num: int = 10) -> tuple[Collective, ...]:
        """The collectives that compute waits for longest.

        Args:
            num: How many.

        Returns:
            At most so many, longest first; none without a timeline.
        """
        waited = [c for c in self.collectives if (c.exposed_s or 0.0) > _NOTHING_S]
        return tuple(sorted(waited, key=lambda c: -(c.exposed_s or 0.0))[:num])

    def as_json(self) -> dict[str, Any]:
        """All of it as data; `profiling/schema/schedule.json` describes the form.

        Returns:
            Dicts, lists, strings, numbers, bools and None.
        """
        from profiling._schedule_json import as_json

        return as_json(self)

    def save_html(self, path: str | Path) -> Path:
        """Write a page that shows it, in one file.

        Args:
            path: Where to.

        Returns:
            The path.
        """
        from profiling._report.html import html

        path = Path(path)
        path.write_text(html(self.as_json()), encoding="utf-8")
        return path

    def show(self, *, top: int = 10) -> None:
        """Print it for people, as wide as the terminal.

        Args:
            top: Collectives to list.
        """
        from rich.console import Console

        from profiling._report.show import show

        show(self, Console(), top=top)

    def __repr__(self) -> str:
        where = "" if self.target is None else f" on {self.target.text}"
        return (
            f"Schedule({self.name!r}{where}, {len(self.collectives)} collectives, "
            f"{self.wire_bytes} bytes on the wire)"
        )


def _unknown(total: Total) -> bool:
    return total.key == "unknown"
