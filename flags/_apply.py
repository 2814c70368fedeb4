"""`apply`: bring flags to the compilers of this process, each by its channel."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from flags._applied import Applied, as_options, place
from flags._flag import FlagValue
from flags._library import Backend
from flags._preset import Preset, preset
from flags._started import started
from flags._workload import Workload

Chosen = Preset | Mapping[str, FlagValue] | str | Path
"""A preset, its name or file, or flags by name."""


def plan(
    chosen: Chosen,
    *,
    workload: Workload | None = None,
    change: Mapping[str, FlagValue] | None = None,
    backend: Backend | None = None,
    libraries: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Applied:
    """What `apply` would do; nothing is changed.

    Args:
        chosen: A preset, its name or file, or flags by name.
        workload: Figures of the step, for presets that compute values.
        change: Flags with other values than the preset's, or besides those.
        backend: What is compiled for; None for the preset's, or ``cpu``.
        libraries: Those that the process will hold; empty for all that are installed.
        environ: Variables to start from; None for those of this process.

    Returns:
        The variables and options to set, and what is to be said about it.

    Raises:
        NotInstalledError: No installed library reads a flag of this backend.
        OSError: A preset's file cannot be read.
        ValueError: No such preset, or a figure of the step that is missing.
    """
    name, plain, backend = _chosen(chosen, workload, change, backend)
    return place(
        name,
        plain,
        backend=backend,
        libraries=tuple(libraries),
        environ=os.environ if environ is None else environ,
    )


def apply(
    chosen: Chosen,
    *,
    workload: Workload | None = None,
    change: Mapping[str, FlagValue] | None = None,
    backend: Backend | None = None,
    libraries: Iterable[str] = (),
) -> Applied:
    """Set flags for this process, before it asks for a device.

    Each flag goes where it is read: into ``XLA_FLAGS`` if every XLA library of the
    process knows it, into ``LIBTPU_INIT_ARGS`` if it is libtpu's own, else into the
    result's `options`, which go to `profiling.compile(flags=...)` or
    `Program.runner(options=...)`. What the user has set already stays as it is. A flag
    that nobody knows is dropped. A warning says so of each that is not simply set, and
    the result's `messages` do.

    Args:
        chosen: A preset, its name or file, or flags by name.
        workload: Figures of the step, for presets that compute values.
        change: Flags with other values than the preset's, or besides those.
        backend: What is compiled for; None for the preset's, or ``cpu``.
        libraries: Those that the process will hold; empty for all that are installed.

    Returns:
        What was set, and what is to be said about it.

    Raises:
        NotInstalledError: No installed library reads a flag of this backend.
        OSError: A preset's file cannot be read.
        RuntimeError: A library has read the variable already, so that setting it would
            do nothing.
        ValueError: No such preset, or a figure of the step that is missing.
    """
    found = plan(
        chosen,
        workload=workload,
        change=change,
        backend=backend,
        libraries=libraries,
    )
    for channel, line in found.variables.items():
        late = started(channel)
        if late and line != os.environ.get(channel, ""):
            raise RuntimeError(
                f"{found.name}: too late to set {channel}: {', '.join(late)}; call "
                f"flags.apply before the first device is used, or give "
                f"flags.options(...) to the compile"
            )
    for message in found.messages:
        if message.kind != "kept":
            warnings.warn(f"{found.name}: {message.text}", stacklevel=2)
    os.environ.update({str(name): line for name, line in found.variables.items()})
    return found


@contextlib.contextmanager
def applied(
    chosen: Chosen,
    *,
    workload: Workload | None = None,
    change: Mapping[str, FlagValue] | None = None,
    backend: Backend | None = None,
    libraries: Iterable[str] = (),
) -> Iterator[Applied]:
    """The same as `apply`, until the block ends.

    The variables are as they were then, also after an exception. A library that has
    read them meanwhile keeps what it has read.

    Args:
        chosen: See `apply`.
        workload: See `apply`.
        change: See `apply`.
        backend: See `apply`.
        libraries: See `apply`.

    Yields:
        What was set.
    """
    before = {name: os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    found = apply(
        chosen,
        workload=workload,
        change=change,
        backend=backend,
        libraries=libraries,
    )
    try:
        yield found
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def options(
    chosen: Chosen,
    *,
    workload: Workload | None = None,
    change: Mapping[str, FlagValue] | None = None,
    backend: Backend | None = None,
) -> Mapping[str, FlagValue]:
    """Flags as options of one compile; no variable is touched.

    Args:
        chosen: See `apply`.
        workload: See `apply`.
        change: See `apply`.
        backend: See `apply`.

    Returns:
        For `profiling.compile(flags=...)` and `Program.runner(options=...)`.

    Raises:
        NotInstalledError: The compiler of this backend is not installed.
        OSError: A preset's file cannot be read.
        ValueError: No such preset, a figure of the step that is missing, or a flag that
            is no compile option of this backend.

    Example:
        >>> dict(options({"xla_cpu_enable_fast_math": "true"}, backend="cpu"))
        {'xla_cpu_enable_fast_math': True}
    """
    name, plain, backend = _chosen(chosen, workload, change, backend)
    return MappingProxyType(as_options(name, plain, backend=backend))


def _chosen(
    chosen: Chosen,
    workload: Workload | None,
    change: Mapping[str, FlagValue] | None,
    backend: Backend | None,
) -> tuple[str, dict[str, FlagValue], Backend]:
    """Name, values and backend of a choice."""
    if isinstance(chosen, Mapping):
        name, values = "flags", dict(chosen)
    else:
        entry = chosen if isinstance(chosen, Preset) else preset(chosen)
        name, values = entry.name, entry.values(workload)
        backend = backend or entry.backend
    both = [*values.items(), *(change or {}).items()]
    plain = {key.removeprefix("--"): value for key, value in both}
    return name, plain, backend or "cpu"
