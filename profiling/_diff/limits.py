"""`Limit`: what fails a check of two steps, such as ``wire_bytes=+5%``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from profiling._diff.diff import Diff, over
from profiling._diff.side import BY_ROLE, FIGURES, ROLES, Side
from profiling._report.show_words import seconds_text
from spmd._program.summary import bytes_text

_TEXT = re.compile(
    r"\s*(?P<figure>[a-z_]+(?::[a-z ]+)?)\s*=\s*(?P<plus>\+?)\s*"
    r"(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(?P<unit>%|[A-Za-z]*)\s*"
)
_BYTES = {"": 1.0, "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_COUNTS = {"": 1.0}
_ROUNDING = 1e-9


def _new(of: Callable[[Side], set[str]]) -> Callable[[Diff], list[str]]:
    return lambda diff: sorted(of(diff.after) - of(diff.before))


def _roles(side: Side) -> set[str]:
    return {m.role for c in side.collectives for m in c.moved}


def _axes(side: Side) -> set[str]:
    return {over(c) for c in side.collectives}


def _changes(what: str) -> Callable[[Diff], list[str]]:
    def found(diff: Diff) -> list[str]:
        groups = [(c.group, c.to) for c in diff.changes if c.what == what]
        return [
            f"{a.role} {a.pattern or a.kind} over {a.axes}"
            + (f", now {b.axes}" if a.axes != b.axes else "")
            for a, b in groups
        ]

    return found


WORDS: Mapping[str, Callable[[Diff], list[str]]] = MappingProxyType(
    {
        "new_roles": _new(_roles),
        "new_axes": _new(_axes),
        "added": _changes("added"),
        "moved": _changes("moved"),
        "grew": _changes("grew"),
    }
)
"""Limits without a figure, and what is found for each; nothing may be."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What B may be, measured by A or on its own.

    Attributes:
        text: As it was given.
        name: A figure (see `Side.figure`), or one of `WORDS`.
        most: Most that the figure may be, or grow by; 0 for one of `WORDS`.
        unit: Of `most` as it was given: ``%``, or what stands for bytes or seconds.
        grows: `most` is above A's figure.
    """

    text: str
    name: str
    most: float = 0.0
    unit: str = ""
    grows: bool = False

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read one.

        Args:
            text: ``FIGURE=+5%``, ``FIGURE=+1ms`` (more than A has), ``FIGURE=2GiB``
                (whatever A has), or one of `WORDS`.

        Returns:
            The limit.

        Raises:
            ValueError: No such figure or word, or a unit that is not the figure's.

        Example:
            >>> limit = Limit.parse("exposed_s=+1.5ms")
            >>> limit.name, limit.most, limit.grows
            ('exposed_s', 0.0015, True)
        """
        if text.strip() in WORDS:
            return cls(text.strip(), text.strip())
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is no limit: write FIGURE=+5%, FIGURE=+1MiB, FIGURE=+1ms or "
                f"FIGURE=2GiB, where FIGURE is one of {_names()}; or one of "
                f"{', '.join(WORDS)}"
            )
        name, unit = match["figure"].strip(), match["unit"]
        _check(name, text)
        number, grows = float(match["number"]), bool(match["plus"])
        if unit == "%" and not grows:
            raise ValueError(f"{text!r}: percent of what A has are written +5%")
        scale = {"%": 0.01, **_units(name)}.get(unit)
        if scale is None and number == 0:
            scale = 1.0
        if scale is None:
            allowed = ", ".join(u or "none" for u in ("%", *_units(name)))
            raise ValueError(
                f"{text!r}: unit {unit or 'none'!r} is not one of {name}; allowed: "
                f"{allowed}"
            )
        return cls(text.strip(), name, number * scale, unit, grows)

    def exceeded(self, diff: Diff) -> str:
        """Say how B is beyond it.

        Args:
            diff: Two steps.

        Returns:
            A sentence; empty where B keeps to it.

        Raises:
            ValueError: A figure that is not known of a step it is asked of.
        """
        if self.name in WORDS:
            found = WORDS[self.name](diff)
            return f"{self.text}: {'; '.join(found)}" if found else ""
        new = self._known(diff.after, "B")
        old = self._known(diff.before, "A") if self.grows else 0.0
        most = old * (1 + self.most) if self.unit == "%" else old + self.most
        if new <= most * (1 + _ROUNDING):
            return ""
        words = f"{self.text}: {self.name} is {figure_text(self.name, new)}"
        if not self.grows:
            return words
        share = f" ({new / old - 1:+.1%})" if old else ""
        more = figure_text(self.name, new - old)
        return f"{words}{share}, {more} more than {figure_text(self.name, old)}"

    def _known(self, side: Side, which: str) -> float:
        value = side.figure(self.name)
        if value is None:
            raise ValueError(
                f"{self.text!r}: {self.name} of {which} ({side.name}) is not known; "
                f"say what it runs on, with --target"
            )
        return value


def figure_text(name: str, value: float | None) -> str:
    """A figure for people.

    Args:
        name: See `Side.figure`.
        value: The figure.

    Returns:
        Text with a unit.

    Example:
        >>> figure_text("wire_bytes", 1536), figure_text("num_runs", 3)
        ('1.5 KiB', '3')
    """
    base = name.partition(":")[0]
    if value is None:
        return "-"
    if base.endswith("_bytes"):
        return bytes_text(round(value))
    return seconds_text(value) if base.endswith("_s") else str(round(value))


def _units(name: str) -> Mapping[str, float]:
    base = name.partition(":")[0]
    if base.endswith("_bytes"):
        return _BYTES
    return _SECONDS if base.endswith("_s") else _COUNTS


def _check(name: str, text: str) -> None:
    base, colon, role = name.partition(":")
    if base not in (BY_ROLE if colon else FIGURES):
        allowed = f"with a role: {', '.join(BY_ROLE)}" if colon else _names()
        raise ValueError(f"{text!r}: no figure {base!r}; {allowed}")
    if colon and role not in ROLES:
        raise ValueError(f"{text!r}: no role {role!r}; one of {', '.join(ROLES)}")


def _names() -> str:
    return ", ".join(FIGURES)
