"""`lint`: what the installed compilers would make of a line of flags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flags._catalogue import catalogue
from flags._checks import ELSEWHERE, Checks
from flags._finding import Finding, LintResult
from flags._flag import CHANNELS, Channel
from flags._library import BACKENDS, LIBRARIES, Backend, Library, NotInstalledError
from flags._library import installed as installed_libraries
from flags._text import Line, parse

_SEVERITY = ("error", "warning", "note")


def lint(
    text: str,
    *,
    where: Channel = "XLA_FLAGS",
    backend: Backend | None = None,
    libraries: Iterable[str] = (),
) -> LintResult:
    """Check a line of flags against the installed compilers.

    Every XLA library of a process reads ``XLA_FLAGS`` by itself and ends the process
    over a flag that it does not know. So a flag counts as accepted there if all
    libraries that read it accept it.

    Args:
        text: Such as ``--xla_a=1 --xla_b``.
        where: What reads it: ``XLA_FLAGS``, ``LIBTPU_INIT_ARGS``, or ``options`` (the
            flags of one compile).
        backend: ``cpu``, ``gpu`` or ``tpu``; None to check for all that are installed.
        libraries: Those that the process will hold, which must be installed; empty for
            all that are installed and read flags there.

    Returns:
        What is to be said about it.

    Raises:
        NotInstalledError: No library that reads them is installed, or a named one not.
        ValueError: No such place, backend or library.

    Example:
        >>> lint("--xla_gpu_enable_async_all_gather=true").findings[0].kind
        'retired'
    """
    if where not in CHANNELS:
        raise ValueError(f"where={where!r}; it is one of {', '.join(CHANNELS)}")
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"backend={backend!r}; it is one of {', '.join(BACKENDS)}")
    readers = readers_of(where, backend, libraries)
    line = parse(text, where)
    job = Checks(
        line,
        where,
        backend,
        {entry.name: catalogue(entry.name) for entry in readers},
        {entry.name: catalogue(entry.name) for entry in installed_libraries()},
    )
    findings = sorted(job.findings(), key=lambda f: (f.start, _SEVERITY.index(f.level)))
    fixed, moved = _fixed(line, findings)
    return LintResult(
        text,
        where,
        backend,
        tuple(f"{c.library} {c.version}" for c in job.readers.values()),
        tuple(job.linted(use) for use in line.uses),
        tuple(findings),
        fixed,
        moved,
    )


def readers_of(
    where: Channel, backend: Backend | None, libraries: Iterable[str] = ()
) -> tuple[Library, ...]:
    """Installed libraries that read flags from somewhere.

    Args:
        where: From where.
        backend: What is compiled for; plugins of another backend are not loaded.
        libraries: Only these; empty for all.

    Returns:
        At least one.

    Raises:
        NotInstalledError: There is none; the message has the command.
        ValueError: A name that is none.
    """
    found = [e for e in installed_libraries(libraries) if where in e.channels]
    if backend is not None:
        # Whatever is compiled for, torch_xla traces and jaxlib makes the options.
        host = where == "XLA_FLAGS"
        found = [e for e in found if backend in e.backends or (host and _is_host(e))]
    if not found:
        kinds = [
            e
            for e in LIBRARIES.values()
            if where in e.channels and (backend is None or backend in e.backends)
        ]
        if not kinds:
            raise ValueError(f"{where} is not read for {backend}; leave backend out")
        commands = " or ".join(f"pip install {e.install}" for e in kinds)
        raise NotInstalledError(
            f"no installed library reads {where}"
            f"{'' if backend is None else f' for {backend}'}; run {commands}"
        )
    return tuple(found)


def _is_host(entry: Library) -> bool:
    return "cpu" in entry.backends


def _fixed(line: Line, findings: Sequence[Finding]) -> tuple[str, dict[str, str]]:
    """The line without what is wrong, and what belongs elsewhere."""
    fixes: dict[int, str] = {}
    for finding in findings:  # of one flag, the gravest first
        if finding.fix is not None:
            fixes.setdefault(finding.start, finding.fix)
    kept: list[str] = []
    moved: dict[str, list[str]] = {}
    for word in sorted([*line.uses, *line.stray], key=lambda w: w.start):
        fix = fixes.get(word.start, word.text)
        if fix.startswith(ELSEWHERE):
            moved.setdefault(fix.removeprefix(ELSEWHERE), []).append(word.text)
        elif fix and fix not in kept:
            kept.append(fix)
    return " ".join(kept), {
        channel: " ".join(words) for channel, words in moved.items()
    }
