"""The checks behind `lint`, each giving findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flags._catalogue import Catalogue, nearest
from flags._finding import Finding, Kind, Level, LintedFlag
from flags._flag import CHANNELS, Channel, Flag
from flags._library import Backend
from flags._rules import conflicts, harmful, retired
from flags._text import FlagUse, Line
from flags._value import meant_number, problem, same

ELSEWHERE = "-> "
"""Begins the fix of a flag that belongs to another channel."""

_PREFIX: dict[Backend, tuple[str, ...]] = {
    "cpu": ("xla_cpu_",),
    "gpu": ("xla_gpu_",),
    "tpu": ("xla_tpu_", "xla_jf_", "xla_sc_", "megascale_"),
}


@dataclass(frozen=True, slots=True)
class Checks:
    """A line and what reads it.

    Attributes:
        line: The line.
        where: From where it is read.
        backend: What is compiled for; None for any.
        readers: Libraries that read it.
        all: All that are installed.
    """

    line: Line
    where: Channel
    backend: Backend | None
    readers: Mapping[str, Catalogue]
    all: Mapping[str, Catalogue]

    def linted(self, use: FlagUse) -> LintedFlag:
        """A flag with who accepts it.

        Args:
            use: The flag.

        Returns:
            The same with libraries and versions.
        """
        took = [c for c in self.readers.values() if self._flag(c, use) is not None]
        refused = [c for c in self.readers.values() if c not in took]
        return LintedFlag(use.name, use.value, _names(took), _names(refused))

    def findings(self) -> Iterator[Finding]:
        """All there is to say, flag by flag."""
        yield from self._stray()
        last = {use.name: use for use in self.line.uses}
        for use in self.line.uses:
            if last[use.name] is use or self._adds(use):
                yield from self._acceptance(use)
            else:
                again = f"{use.name} is given again further on, and the last one counts"
                yield _say("warning", "repeated", use, again, fix="")
        yield from self._conflicts()

    def _acceptance(self, use: FlagUse) -> Iterator[Finding]:
        known = {
            name: flag
            for name, c in self.readers.items()
            if (flag := self._flag(c, use)) is not None
        }
        # Options go to one compiler: without a backend, any that takes them will do.
        any_will_do = self.where == "options" and self.backend is None
        if not known or (len(known) < len(self.readers) and not any_will_do):
            yield self._not_accepted(use, [self.readers[name] for name in known])
            return
        for name, flag in known.items():
            value = _value(flag, use)
            wrong = problem(flag, value, self.where)
            if wrong:
                said = use.name if value is None else f"{use.name}={value}"
                by = f"{name} {self.readers[name].version}"
                meant = meant_number(value or "")
                number = meant is not None and str(meant) in wrong
                yield _say(
                    "error",
                    "value",
                    use,
                    f"{said}: {by} {wrong}",
                    fix=f"--{use.name}={meant}" if number else "",
                )
                return
        yield from self._remarks(use, list(known.values()))

    def _remarks(self, use: FlagUse, known: Sequence[Flag]) -> Iterator[Finding]:
        """What there is to say about a flag that is accepted."""
        flag, value = known[0], _value(known[0], use)
        for backend, prefixes in _PREFIX.items():
            if self.backend not in {None, backend} and flag.name.startswith(prefixes):
                does = (
                    f"{use.name} is for {backend.upper()}s and does nothing on "
                    f"{str(self.backend).upper()}s"
                )
                yield _say("warning", "backend", use, does, fix="")
                return
        for entry in harmful():
            here = self.backend in {None, entry.backend}
            if here and flag.name in entry.flags and entry.applies(flag, value):
                said = f"{use.text} is harmful: {entry.figure}"
                fix = entry.instead or ""
                yield _say(
                    "warning", "harmful", use, said, fix=fix, source=entry.source
                )
        if flag.deprecated:
            old = f"{use.name} is deprecated: it may do nothing"
            yield _say("warning", "deprecated", use, old)
        elif all(f.default is not None and same(f, value, f.default) for f in known):
            yield _say("note", "default", use, f"{use.text} is the default", fix="")

    def _not_accepted(self, use: FlagUse, known: Sequence[Catalogue]) -> Finding:
        refused = [c for c in self.readers.values() if c not in known]
        names = _listed(_names(refused))
        does = "does" if len(refused) == 1 else "do"
        end = (
            "the compile fails"
            if self.where == "options"
            else "the process ends when it first reads its flags"
        )
        gone = retired().get(use.name)
        if gone is not None:
            instead = f"; use {gone.instead}" if gone.instead else ""
            said = (
                f"{use.name} is retired: {names} {does} not take it, and {end}; "
                f"{gone.reason}{instead}"
            )
            return _say("error", "retired", use, said, fix=gone.instead or "")
        if known:
            took = _listed(_names(known))
            said = (
                f"{use.name} is known to {took}, but {names} {does} not know it, and "
                f"a process that holds them all ends when it first reads its flags; "
                f"give it as an option of the compile"
            )
            option = self._is_option(use)
            fix = f"{ELSEWHERE}options" if option else ""
            return _say("error", "unknown", use, said, fix=fix)
        if self.where == "XLA_FLAGS" and not use.text.startswith("--"):
            said = f"{names} {does} not know {use.text}, and {end}; write two dashes"
            return _say("error", "unknown", use, said, fix=f"--{use.text.lstrip('-')}")
        said = f"{names} {does} not know {use.name}, and {end}{self._hint(use)}"
        return self._elsewhere(use) or _say("error", "unknown", use, said, fix="")

    def _is_option(self, use: FlagUse) -> bool:
        return any(c.accepts(use.name, "options") for c in self.all.values())

    def _elsewhere(self, use: FlagUse) -> Finding | None:
        """A flag that other channels take."""
        for channel in CHANNELS:
            took = [c for c in self.all.values() if c.accepts(use.name, channel)]
            if channel != self.where and took:
                place = "the options of a compile" if channel == "options" else channel
                said = (
                    f"{use.name} is not for {self.where}: {_names(took)[0]} takes it "
                    f"from {place}"
                )
                return _say("error", "channel", use, said, fix=f"{ELSEWHERE}{channel}")
        return None

    def _hint(self, use: FlagUse) -> str:
        known = {
            flag.name
            for c in self.readers.values()
            for flag in c.in_channel(self.where)
        }
        near = nearest(use.name, known)
        return f"; did you mean {near}?" if near else ""

    def _stray(self) -> Iterator[Finding]:
        text = self.line.text
        if self.where == "XLA_FLAGS" and text and not text.strip():
            blank = (
                "nothing but spaces, which XLA takes for the name of a file of flags"
            )
            yield Finding("error", "syntax", "", blank, 0, len(text), fix="")
        for number, word in enumerate(self.line.stray):
            name = word.text.partition("=")[0]
            flag = any(
                self.where in c.flags[name].channels
                for c in self.readers.values()
                if name in c.flags
            )
            first = not any(use.start < word.start for use in self.line.uses)
            if self.where == "LIBTPU_INIT_ARGS":
                then = "it is not read"
            elif number:
                then = "XLA has stopped reading before it"
            elif first:
                then = "XLA takes the whole text for the name of a file of flags"
            else:
                then = "XLA stops reading here and ignores everything after it"
            yield Finding(
                "error",
                "syntax",
                "",
                f"{word.text!r} begins with no dash: {then}",
                word.start,
                word.end,
                fix=f"--{word.text}" if flag else "",
            )

    def _conflicts(self) -> Iterator[Finding]:
        last = {use.name: use for use in self.line.uses}

        def met(setting: tuple[str, str | None]) -> FlagUse | None:
            name, wanted = setting
            use = last.get(name)
            flags = [f for c in self.readers.values() if (f := c.flags.get(name))]
            if use is None or not flags:
                return None
            default = flags[0].default
            if wanted is not None:
                return use if same(flags[0], use.value, wanted) else None
            changes = default is None or not same(flags[0], use.value, default)
            return use if changes else None

        for entry in conflicts():
            first, second = met(entry.first), met(entry.second)
            if first is not None and second is not None:
                said = f"{second.text} conflicts with {first.text}: {entry.reason}"
                yield _say("warning", "conflict", second, said)

    def _flag(self, c: Catalogue, use: FlagUse) -> Flag | None:
        """The flag as a library would find it; None where it would not."""
        if self.where == "XLA_FLAGS" and not use.text.startswith("--"):
            return None
        flag = c.flags.get(use.name)
        if flag is None and self.where == "LIBTPU_INIT_ARGS":  # absl: --noflag
            flag = c.flags.get(use.name.removeprefix("no"))
            flag = flag if flag is not None and flag.type == "bool" else None
        return flag if flag is not None and self.where in flag.channels else None

    def _adds(self, use: FlagUse) -> bool:
        """Whether XLA adds the values of a flag that is given twice."""
        flags = [f for c in self.readers.values() if (f := c.flags.get(use.name))]
        return bool(flags) and flags[0].repeated and self.where == "XLA_FLAGS"


def _say(
    level: Level,
    kind: Kind,
    use: FlagUse,
    message: str,
    *,
    fix: str | None = None,
    source: str = "",
) -> Finding:
    return Finding(level, kind, use.name, message, use.start, use.end, fix, source)


def _value(flag: Flag, use: FlagUse) -> str | None:
    return use.value if flag.name == use.name else "false"  # --noflag


def _names(catalogues: Iterable[Catalogue]) -> tuple[str, ...]:
    return tuple(f"{c.library} {c.version}" for c in catalogues)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
