"""What is known about flags beyond their catalogue: retired, harmful, conflicting."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flags._flag import Flag
from flags._library import Backend
from flags._value import same

_FOLDER = Path(__file__).with_name("data")


@dataclass(frozen=True, slots=True)
class Retired:
    """A flag that some or all compilers no longer take.

    Attributes:
        instead: What to write for it; None to drop it.
        reason: Why it went, or what took its place.
    """

    instead: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Harmful:
    """A setting that a measurement found harmful.

    Attributes:
        flags: Which.
        backend: On what.
        instead: What to set; None for the default.
        figure: What was measured.
        source: Where, when and with what.
        equals: The harmful value; None where a bound counts.
        at_least: The least that is harmful.
        at_most: The most that is harmful.
    """

    flags: tuple[str, ...]
    backend: Backend
    instead: str | None
    figure: str
    source: str
    equals: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    def applies(self, flag: Flag, value: str | None) -> bool:
        """Whether a value is one of the harmful ones.

        Args:
            flag: The flag.
            value: As it is written.

        Returns:
            True if it is.
        """
        if self.equals is not None:
            return same(flag, value, self.equals)
        try:
            number = float(value or "")
        except ValueError:
            return False
        low = self.at_least if self.at_least is not None else float("-inf")
        high = self.at_most if self.at_most is not None else float("inf")
        return low <= number <= high


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two settings of which the first undoes the second.

    Attributes:
        first: Flag and value.
        second: Flag, and a value or None for any but the default.
        reason: Why.
    """

    first: tuple[str, str | None]
    second: tuple[str, str | None]
    reason: str


@functools.cache
def retired() -> Mapping[str, Retired]:
    """Retired flags by name.

    Returns:
        What ``data/retired.yaml`` holds.
    """
    return {name: Retired(**entry) for name, entry in _data("retired").items()}


@functools.cache
def harmful() -> tuple[Harmful, ...]:
    """Harmful settings.

    Returns:
        What ``data/harmful.yaml`` holds.
    """
    return tuple(
        Harmful(**{**entry, "flags": tuple(entry["flags"])})
        for entry in _data("harmful")
    )


@functools.cache
def conflicts() -> tuple[Conflict, ...]:
    """Conflicting settings.

    Returns:
        What ``data/conflicts.yaml`` holds.
    """
    return tuple(
        Conflict(_setting(entry["first"]), _setting(entry["second"]), entry["reason"])
        for entry in _data("conflicts")
    )


def _setting(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return name, value if equals else None


def _data(name: str) -> Any:
    text = (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)
