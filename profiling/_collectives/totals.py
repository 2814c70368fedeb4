"""Totals of a step's collectives by role, axes, kind, phase or link."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from profiling._collectives.collective import Collective, Moved

By: TypeAlias = Literal["role", "axes", "kind", "phase", "link"]
Key: TypeAlias = tuple[str, ...]
KeyOf: TypeAlias = Callable[[Collective, Moved], str]


@dataclass(frozen=True, slots=True)
class Total:
    """Sums over the collectives that have something in common.

    Attributes:
        key: What they have in common; empty where it is not known.
        num_collectives: Collectives; one that moves things of several roles or phases
            counts for each of these.
        num_runs: Executions of them in one step.
        step_wire_bytes: Sent by one device in one step. These add up to those of all
            collectives, whatever the totals are by.
        exposed_s: Estimate of the time that compute waits; None without a timeline.
        hidden_s: Estimate of the time behind compute.
    """

    key: str
    num_collectives: int
    num_runs: int
    step_wire_bytes: int
    exposed_s: float | None
    hidden_s: float | None


def axes_text(collective: Collective) -> str:
    """What a collective runs over.

    Args:
        collective: The collective.

    Returns:
        Its axes joined by commas; XLA's text of its groups where it has none.
    """
    return ", ".join(collective.axes) or collective.groups


_KEYS: Mapping[By, KeyOf] = MappingProxyType(
    {
        "role": lambda _, moved: moved.role,
        "axes": lambda collective, _: axes_text(collective),
        "kind": lambda collective, _: collective.kind,
        "phase": lambda _, moved: moved.phase,
        "link": lambda collective, _: collective.link,
    }
)


def totals(collectives: Iterable[Collective], by: By) -> tuple[Total, ...]:
    """Sum up what collectives move and take.

    Args:
        collectives: Of one step.
        by: What to tell them apart by.

    Returns:
        Totals, most bytes first.

    Raises:
        ValueError: Something else to tell them apart by.
    """
    if by not in _KEYS:
        raise ValueError(f"totals by {by!r}: one of {', '.join(get_args(By))}")
    return tuple(total for _, total in table(collectives, _KEYS[by]))


def by_axes_and_role(
    collectives: Iterable[Collective],
    name_of: Callable[[Collective], str] = axes_text,
) -> tuple[tuple[Key, Total], ...]:
    """Sum up by axes, role and link together.

    Args:
        collectives: Of one step.
        name_of: What to call the axes.

    Returns:
        Axes, role and link, and the total; most bytes first.
    """
    return table(collectives, lambda c, _: name_of(c), _KEYS["role"], _KEYS["link"])


def table(
    collectives: Iterable[Collective], *keys: KeyOf
) -> tuple[tuple[Key, Total], ...]:
    """Sum up by several things together.

    Args:
        collectives: Of one step.
        *keys: Give what to tell them apart by.

    Returns:
        Keys and their total, most bytes first.
    """
    sums: dict[Key, _Sum] = {}
    for collective in collectives:
        shares: dict[Key, int] = {}
        for moved in collective.moved:
            key = tuple(of(collective, moved) for of in keys)
            shares[key] = shares.get(key, 0) + moved.wire_bytes
        for key, wire_bytes in shares.items():
            share = _share(wire_bytes, collective.wire_bytes, len(shares))
            sums.setdefault(key, _Sum()).add(collective, wire_bytes, share)
    ordered = sorted(sums.items(), key=lambda item: -item[1].step_wire_bytes)
    return tuple((key, found.total(", ".join(key))) for key, found in ordered)


def _share(part: int, whole: int, number: int) -> float:
    """Part of a collective's time that one of several keys gets."""
    return part / whole if whole else 1 / number


@dataclass(slots=True)
class _Sum:
    num_collectives: int = 0
    num_runs: int = 0
    step_wire_bytes: int = 0
    exposed_s: float | None = None
    hidden_s: float | None = None

    def add(self, collective: Collective, wire_bytes: int, share: float) -> None:
        self.num_collectives += 1
        self.num_runs += collective.num_runs
        self.step_wire_bytes += wire_bytes * collective.num_runs
        if collective.exposed_s is not None:
            self.exposed_s = (self.exposed_s or 0.0) + collective.exposed_s * share
        if collective.hidden_s is not None:
            self.hidden_s = (self.hidden_s or 0.0) + collective.hidden_s * share

    def total(self, key: str) -> Total:
        return Total(
            key,
            self.num_collectives,
            self.num_runs,
            self.step_wire_bytes,
            self.exposed_s,
            self.hidden_s,
        )
