"""`Applied`: where each flag of a choice goes, and what is to be said about it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from flags._catalogue import Catalogue, catalogue, nearest
from flags._flag import Channel, Flag, FlagValue
from flags._library import Backend, NotInstalledError
from flags._lint import readers_of
from flags._text import parse, written
from flags._value import as_option, problem, same

MessageKind: TypeAlias = Literal["kept", "conflict", "dropped", "option"]


@dataclass(frozen=True, slots=True)
class Message:
    """What became of one flag that was not simply set.

    Attributes:
        kind: ``kept`` (the user has set the same), ``conflict`` (the user has set
            another value, which stays), ``dropped``, or ``option``.
        name: The flag.
        text: In words.
    """

    kind: MessageKind
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Applied:
    """Where flags go.

    Attributes:
        name: Of the preset.
        backend: What is compiled for.
        variables: The whole new value of each variable that changes.
        options: For `profiling.compile(flags=...)` or `Program.runner(options=...)`.
        messages: What became of flags that were not simply set.
        added: What is new in each variable.
    """

    name: str
    backend: Backend
    variables: Mapping[Channel, str] = field(hash=False)
    options: Mapping[str, FlagValue] = field(hash=False)
    messages: tuple[Message, ...]
    added: Mapping[Channel, str] = field(hash=False)

    def export_lines(self) -> str:
        """The variables as lines of a shell script.

        Returns:
            Empty where no variable changes.
        """
        return "\n".join(
            f"export {name}={shlex.quote(value)}"
            for name, value in self.variables.items()
        )

    def as_json(self) -> dict[str, Any]:
        """The fields as plain data.

        Returns:
            What `json.dumps` takes.
        """
        return {
            "name": self.name,
            "backend": self.backend,
            "variables": dict(self.variables),
            "options": dict(self.options),
            "messages": [asdict(message) for message in self.messages],
            "added": dict(self.added),
        }


@dataclass(frozen=True, slots=True)
class _Process:
    """What a process holds and has set."""

    backend: Backend
    environ: Mapping[str, str]
    readers: Mapping[Channel, tuple[Catalogue, ...]]

    @classmethod
    def of(
        cls, backend: Backend, libraries: tuple[str, ...], environ: Mapping[str, str]
    ) -> _Process:
        variables: tuple[Channel, ...] = ("XLA_FLAGS",)
        if backend == "tpu":
            variables = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
        readers: dict[Channel, tuple[Catalogue, ...]] = {
            c: _catalogues(c, backend, libraries if c == "XLA_FLAGS" else ())
            for c in variables
        }
        with contextlib.suppress(NotInstalledError):
            readers["options"] = _catalogues("options", backend, ())
        return cls(backend, environ, readers)

    def known(self, name: str) -> Flag | None:
        """The flag as any library here describes it."""
        for found in self.readers.values():
            for entry in found:
                if name in entry.flags:
                    return entry.flags[name]
        return None

    def set_by_user(self, name: str) -> tuple[Channel, str | None] | None:
        """Where the user has set a flag, and to what."""
        for channel in self.readers:
            if channel != "options":
                uses = parse(self.environ.get(channel, ""), channel).uses
                for use in reversed(uses):
                    if use.name == name:
                        return channel, use.value
        return None

    def channel(self, name: str) -> Channel | None:
        """Where all that read flags take this one."""
        for channel, found in self.readers.items():
            if all(entry.accepts(name, channel) for entry in found):
                return channel
        return None

    def refusing(self, name: str) -> str:
        """Libraries that read XLA_FLAGS and do not know a flag."""
        return _listed(
            f"{c.library} {c.version}"
            for c in self.readers["XLA_FLAGS"]
            if not c.accepts(name, "XLA_FLAGS")
        )


def place(
    name: str,
    values: Mapping[str, FlagValue],
    *,
    backend: Backend,
    libraries: tuple[str, ...],
    environ: Mapping[str, str],
) -> Applied:
    """Find a channel for each flag.

    Args:
        name: What the flags are called together.
        values: By flag.
        backend: What is compiled for.
        libraries: Those that the process will hold; empty for all that are installed.
        environ: Variables to start from.

    Returns:
        Variables, options and messages.

    Raises:
        NotInstalledError: No installed library reads flags for this backend.
    """
    process = _Process.of(backend, libraries, environ)
    lines: dict[Channel, list[str]] = {}
    options: dict[str, FlagValue] = {}
    messages: list[Message] = []
    for flag_name, value in values.items():
        flag = process.known(flag_name)
        mine = process.set_by_user(flag_name)
        if flag is None:
            messages.append(_unknown(process, flag_name))
        elif mine is not None:
            messages.append(_kept(flag, value, *mine))
        elif (channel := process.channel(flag_name)) is None:
            messages.append(_no_channel(process, flag_name))
        elif wrong := problem(flag, _text(value), channel):
            text = f"{flag_name}={_text(value)} is dropped: it {wrong}"
            messages.append(Message("dropped", flag_name, text))
        elif channel == "options":
            options[flag_name] = as_option(flag, value)
            messages.append(_to_options(process, flag_name))
        else:
            lines.setdefault(channel, []).append(written(flag_name, value))
    added: dict[Channel, str] = {c: " ".join(words) for c, words in lines.items()}
    variables: dict[Channel, str] = {
        c: " ".join(filter(None, (environ.get(c, "").strip(), line)))
        for c, line in added.items()
    }
    return Applied(name, backend, variables, options, tuple(messages), added)


def as_options(
    name: str, values: Mapping[str, FlagValue], *, backend: Backend
) -> dict[str, FlagValue]:
    """Flags as options of one compile.

    Args:
        name: What the flags are called together.
        values: By flag.
        backend: What is compiled for.

    Returns:
        Value by flag, as the compiler takes it.

    Raises:
        NotInstalledError: The compiler is not installed.
        ValueError: A flag that it does not take, or not with this value.
    """
    (compiler,) = _catalogues("options", backend, ())
    found: dict[str, FlagValue] = {}
    for flag_name, value in values.items():
        if not compiler.accepts(flag_name, "options"):
            known = [flag.name for flag in compiler.in_channel("options")]
            near = nearest(flag_name, known)
            raise ValueError(
                f"{name}: {compiler.library} {compiler.version} has no compile option "
                f"{flag_name}{f'; did you mean {near}?' if near else ''}"
            )
        flag = compiler.flags[flag_name]
        wrong = problem(flag, _text(value), "options")
        if wrong:
            raise ValueError(
                f"{name}: {flag_name}={_text(value)}: {compiler.library} "
                f"{compiler.version} {wrong}"
            )
        found[flag_name] = as_option(flag, value)
    return found


def _catalogues(
    channel: Channel, backend: Backend, libraries: tuple[str, ...]
) -> tuple[Catalogue, ...]:
    return tuple(catalogue(e.name) for e in readers_of(channel, backend, libraries))


def _unknown(process: _Process, name: str) -> Message:
    names = {n for found in process.readers.values() for c in found for n in c.flags}
    near = nearest(name, names)
    hint = f"; did you mean {near}?" if near else ""
    text = f"{name} is dropped: no installed library for {process.backend} knows it"
    return Message("dropped", name, text + hint)


def _kept(flag: Flag, value: FlagValue, channel: Channel, mine: str | None) -> Message:
    if same(flag, mine, _text(value)):
        text = f"{flag.name} is set in {channel} already"
        return Message("kept", flag.name, text)
    stays = "true" if mine is None else mine
    asked = f"{_text(value)} was asked for"
    text = f"{flag.name} stays at {stays}, as {channel} has it; {asked}"
    return Message("conflict", flag.name, text)


def _no_channel(process: _Process, name: str) -> Message:
    text = (
        f"{name} is dropped: {process.refusing(name)} would end the process over it in "
        f"XLA_FLAGS, and it is no compile option"
    )
    return Message("dropped", name, text)


def _to_options(process: _Process, name: str) -> Message:
    refusing = process.refusing(name)
    why = f"{refusing} would end the process over it in XLA_FLAGS"
    text = (
        f"{name} goes to the compile: {why}; give the result's options to "
        f"profiling.compile(flags=...) or Program.runner(options=...)"
    )
    return Message("option", name, text)


def _text(value: FlagValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(words: Iterable[str]) -> str:
    found = list(words)
    if len(found) < 2:
        return "".join(found)
    return f"{', '.join(found[:-1])} and {found[-1]}"
