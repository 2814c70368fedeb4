"""What ``spmd flags`` prints for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.table import Table

from flags._applied import Applied
from flags._catalogue import Catalogue
from flags._flag import Flag
from flags._preset import Preset

_LETTERS = {"XLA_FLAGS": "X", "LIBTPU_INIT_ARGS": "L", "options": "o"}
_LONGEST = 32


def flag_table(found: Sequence[Catalogue], *, wide: bool) -> Table:
    """Flags of several libraries, one row for each.

    Args:
        found: Their catalogues.
        wide: There is room for the defaults.

    Returns:
        The table.
    """
    table = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        caption=_legend(found),
        caption_justify="left",
    )
    table.add_column("flag", overflow="fold")
    table.add_column("type", no_wrap=True)
    for entry in found:
        table.add_column(entry.library[0].upper(), no_wrap=True)
    if wide:
        table.add_column("default", overflow="fold", max_width=_LONGEST)
    for name in sorted({name for entry in found for name in entry.flags}):
        flags = [entry.flags.get(name) for entry in found]
        known = [flag for flag in flags if flag is not None]
        row = [name, known[0].type, *(_channels(flag) for flag in flags)]
        table.add_row(*row, *([_default(known)] if wide else []))
    return table


def _legend(found: Sequence[Catalogue]) -> str:
    names = ", ".join(f"{c.library[0].upper()} {c.library} {c.version}" for c in found)
    taken = ", ".join(f"{letter} {c}" for c, letter in _LETTERS.items())
    return f"{names}\nfrom {taken} of a compile"


def _channels(flag: Flag | None) -> str:
    return "-" if flag is None else "".join(_LETTERS[c] for c in flag.channels)


def _default(known: Sequence[Flag]) -> str:
    said = dict.fromkeys("?" if f.default is None else f.default for f in known)
    return " | ".join(text or "''" for text in said)


def preset_text(entry: Preset, found: Applied) -> str:
    """A preset with its reasons, as comments of a shell script.

    Args:
        entry: The preset.
        found: Where its flags go.

    Returns:
        Lines that begin with ``#``.
    """
    versions = ", ".join(f"{k} {v}" for k, v in entry.versions.items())
    said = f" Judged {entry.date} with {versions}." if entry.date else ""
    lines = _comment(f"{entry.name} ({found.backend}): {entry.about}{said}")
    if entry.figures:
        lines += _comment(entry.figures)
    line = " ".join(found.added.values())
    for flag in entry.flags:
        if flag.name in found.options or f"--{flag.name}" in line:
            source = f" ({flag.source})" if flag.source else ""
            lines += _comment(f"{flag.name}: {flag.reason}{source}", indent="  ")
    return "\n".join(lines)


def _comment(text: str, indent: str = "") -> list[str]:
    first = f"# {indent}"
    return textwrap.wrap(
        text,
        88,
        initial_indent=first,
        subsequent_indent=f"{first}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
