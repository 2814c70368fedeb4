"""`Finding` and `LintResult`: what is to be said about a line of flags."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from flags._flag import Channel
from flags._library import Backend

Level: TypeAlias = Literal["error", "warning", "note"]
Kind: TypeAlias = Literal[
    "unknown",
    "retired",
    "channel",
    "value",
    "conflict",
    "repeated",
    "harmful",
    "default",
    "backend",
    "deprecated",
    "syntax",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about one flag of a line.

    Attributes:
        level: ``error`` (the process would end, or the flag not be read), ``warning``,
            or ``note``.
        kind: What it is about.
        name: The flag; empty for words that are none.
        message: In words.
        start: Where the flag begins in the text.
        end: Where it ends.
        fix: What to write instead; empty to drop it; None to leave it.
        source: Where a figure is from; empty without one.
    """

    level: Level
    kind: Kind
    name: str
    message: str
    start: int
    end: int
    fix: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class LintedFlag:
    """A flag of a line, and who accepts it there.

    Attributes:
        name: Without dashes.
        value: As it is read; None for a bare ``--flag``.
        accepted_by: Libraries with their versions.
        refused_by: Libraries that read the line too and do not know the flag.
    """

    name: str
    value: str | None
    accepted_by: tuple[str, ...]
    refused_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LintResult:
    """What is to be said about a line of flags.

    Attributes:
        text: The line.
        where: What reads it.
        backend: What it is for; None for any.
        libraries: Those that read it, with their versions.
        flags: Flags in order.
        findings: In the order of the line.
        fixed: The line without what is wrong.
        moved: What belongs elsewhere, by the channel.
    """

    text: str
    where: Channel
    backend: Backend | None
    libraries: tuple[str, ...]
    flags: tuple[LintedFlag, ...]
    findings: tuple[Finding, ...]
    fixed: str
    moved: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(finding.level != "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The fields as plain data.

        Returns:
            What `json.dumps` takes.
        """
        return {**asdict(self), "ok": self.ok}

    def show(self) -> str:
        """The findings as text, each with a caret under its flag.

        Returns:
            Lines; one that says so where nothing was found.
        """
        blocks = [_shown(self.text, finding) for finding in self.findings]
        counts = {
            level: sum(f.level == level for f in self.findings)
            for level in ("error", "warning", "note")
        }
        said = ", ".join(
            f"{n} {level}{'s' * (n != 1)}" for level, n in counts.items() if n
        )
        readers = ", ".join(self.libraries)
        number = len(self.flags)
        end = (
            f"{self.where}: {number} flag{'s' * (number != 1)}, read by {readers}: "
            f"{said or 'nothing to say'}"
        )
        return "\n\n".join([*blocks, end])


_BEFORE, _WIDTH = 12, 76


def _shown(text: str, finding: Finding) -> str:
    """A finding with the part of the line that it is about."""
    flat = "".join(" " if c in "\t\r\n" else c for c in text)
    start, end = finding.start, finding.end
    left = max(0, start - _BEFORE)
    right = min(len(flat), max(end, left + _WIDTH))
    before, after = "..." * (left > 0), "..." * (right < len(flat))
    caret = " " * (len(before) + start - left) + "^" + "~" * max(0, end - start - 1)
    source = f"\n  source: {finding.source}" if finding.source else ""
    return (
        f"{finding.level}: {finding.message}\n"
        f"  {before}{flat[left:right]}{after}\n  {caret}{source}"
    )
