"""A line of flags, taken apart the way the compilers do it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flags._flag import Channel, FlagValue

_SPACE = " \t\r\n"
_NAME = re.compile(r"[-_A-Za-z0-9]*")


@dataclass(frozen=True, slots=True)
class FlagUse:
    """A flag as it is written in a line.

    Attributes:
        name: Without dashes.
        value: As XLA reads it, without quotes; None for a bare ``--flag``.
        text: As it is written.
        start: Where it begins in the line.
        end: Where it ends.
    """

    name: str
    value: str | None
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Stray:
    """A word that is no flag.

    Attributes:
        text: As it is written.
        start: Where it begins in the line.
        end: Where it ends.
    """

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line of flags.

    Attributes:
        text: The line.
        uses: Flags, in order.
        stray: Words that are no flags, in order.
    """

    text: str
    uses: tuple[FlagUse, ...]
    stray: tuple[Stray, ...] = ()


def parse(text: str, where: Channel) -> Line:
    """Take a line apart.

    XLA reads ``XLA_FLAGS`` up to the first word that begins with no dash
    (xla/parse_flags_from_env.cc); libtpu skips such words; options may be written with
    or without dashes. What XLA does not read is taken apart all the same.

    Args:
        text: The line.
        where: What reads it.

    Returns:
        Its flags.

    Example:
        >>> [(u.name, u.value) for u in parse("--a=1 --b='x y'", "XLA_FLAGS").uses]
        [('a', '1'), ('b', 'x y')]
    """
    uses: list[FlagUse] = []
    stray: list[Stray] = []
    at = _skip(text, 0)
    while at < len(text):
        end, quoted = _end(text, at, quotes=where == "XLA_FLAGS")
        if text[at] == "-" or where == "options":
            uses.append(_use(text[at:end], quoted, at, end))
        else:
            stray.append(Stray(text[at:end], at, end))
        at = _skip(text, end)
    return Line(text, tuple(uses), tuple(stray))


def _end(text: str, at: int, *, quotes: bool) -> tuple[int, str | None]:
    """Where the word ends that begins at `at`, and its value if that is in quotes."""
    name = _NAME.match(text, at)
    assert name is not None
    end = name.end()
    if quotes and text[at] == "-" and text[end : end + 2] in {"='", '="'}:
        quoted, end = _quoted(text, end + 1)
        return end, quoted
    while end < len(text) and text[end] not in _SPACE:
        end += 1
    return end, None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Value in quotes that open at `at`, and where the flag ends."""
    quote, at, value = text[at], at + 1, ""
    while at < len(text) and text[at] != quote:
        if quote == '"' and text[at] == "\\" and at + 1 < len(text):
            at += 1
        value += text[at]
        at += 1
    return value, min(at + 1, len(text))


def _use(word: str, quoted: str | None, start: int, end: int) -> FlagUse:
    name, equals, value = word.lstrip("-").partition("=")
    if quoted is not None:
        value = quoted
    return FlagUse(name, value if equals else None, word, start, end)


def written(name: str, value: FlagValue | None) -> str:
    """A flag as it is written in a variable.

    Args:
        name: Without dashes.
        value: None for a bare flag.

    Returns:
        Text that `parse` reads back.

    Example:
        >>> written("xla_dump_to", "/tmp/my dump"), written("xla_x", True)
        ("--xla_dump_to='/tmp/my dump'", '--xla_x=true')
    """
    if value is None:
        return f"--{name}"
    said = str(value).lower() if isinstance(value, bool) else str(value)
    if any(c in _SPACE for c in said) or said[:1] in {"'", '"'}:
        if "'" not in said:
            said = f"'{said}'"
        else:
            escaped = said.replace("\\", "\\\\").replace('"', '\\"')
            said = f'"{escaped}"'
    return f"--{name}={said}"


def without(text: str, names: frozenset[str], where: Channel) -> str:
    """A line without some of its flags.

    Args:
        text: The line.
        names: Flags to take out.
        where: What reads it.

    Returns:
        What is left, single spaces between.
    """
    return " ".join(u.text for u in parse(text, where).uses if u.name not in names)
