"""Who can record what this process does: torch_xla and jax, each its own part.

Each brings its own copy of XLA's profiler, which knows nothing of the other. A step
that `spmd` runs on jax is traced by torch_xla, and a lazy torch_xla program may call
jax to convert something; so both record, and what counts is whose devices worked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

from profiling._hlo.wire import fields

_PLANES, _NAME, _LINES, _STAT_NAMES, _HOSTNAMES = 1, 2, 3, 5, 4  # XSpace, XPlane
_VALUE, _STAT_NAME = 2, 2  # of a map's entry, of XStatMetadata


class Seam(Protocol):
    """What `spmd._torch_xla.profile` and `spmd._pjrt.profile` have in common."""

    Session: Any

    def is_up(self) -> bool: ...
    def start_runtime(self) -> None: ...
    def is_recording(self) -> bool: ...
    def wait(self, *, dropped: bool = True) -> None: ...
    def team(self) -> tuple[int, int]: ...
    def serve(self, port: int) -> Any: ...


@dataclass(frozen=True, slots=True)
class Recorder:
    """A library that can record.

    Attributes:
        name: ``jax`` or ``torch_xla``.
        seam: Its part of `spmd`.
    """

    name: str
    seam: Seam


def recorders() -> tuple[Recorder, ...]:
    """The libraries whose devices may work from now on; the likeliest first.

    Returns:
        At least one.

    Raises:
        RuntimeError: Neither is imported.
    """
    loaded = [name for name in ("jax", "torch_xla") if name in sys.modules]
    if not loaded:
        raise RuntimeError(
            "neither jax nor torch_xla is imported in this process, so that nothing "
            "can run on a device; import the one that runs the steps first"
        )
    found: list[Recorder] = []
    if "jax" in loaded:
        from spmd._pjrt import profile as pjrt_profile

        if _runs_on_jax() or loaded == ["jax"]:
            pjrt_profile.start_runtime()
        found.append(Recorder("jax", cast(Seam, pjrt_profile)))
    if "torch_xla" in loaded:
        from spmd._torch_xla import profile as torch_xla_profile

        found.append(Recorder("torch_xla", cast(Seam, torch_xla_profile)))
        if not _runs_on_jax() and torch_xla_profile.is_up():
            found.reverse()
    return tuple(found)


def _runs_on_jax() -> bool:
    """Whether `spmd.init` chose jax; asks nothing where it was never called."""
    runtime = sys.modules.get("spmd._runtime")
    return runtime is not None and runtime.runtime() == "jax"


def device_work(space: bytes) -> int:
    """How much a recording holds of what devices did.

    Args:
        space: A serialised ``XSpace``.

    Returns:
        Bytes of the planes with a device's events, or with operations of a CPU that
        acts as devices; 0 if none has any.
    """
    total = 0
    for plane in _messages(space, 0, len(space), _PLANES):
        name, lines_bytes = "", 0
        for number, wire, start, end in fields(space, *plane):
            if number == _NAME and wire == 2:
                name = space[start:end].decode(errors="replace")
            elif number == _LINES:
                lines_bytes += end - start
        is_device = name.startswith("/device:") and "CUSTOM" not in name
        if is_device or (name == "/host:CPU" and "hlo_op" in _stat_names(space, plane)):
            total += lines_bytes
    return total


def _stat_names(space: bytes, plane: tuple[int, int]) -> set[str]:
    """Names of what events of a plane say; only those in use are listed."""
    return {
        space[start:end].decode(errors="replace")
        for entry in _messages(space, *plane, _STAT_NAMES)
        for value in _messages(space, *entry, _VALUE)
        for start, end in _messages(space, *value, _STAT_NAME)
    }


def _messages(
    data: bytes, start: int, end: int, number: int
) -> Iterator[tuple[int, int]]:
    for found, wire, after, stop in fields(data, start, end):
        if found == number and wire == 2:
            yield after, stop


def with_host(space: bytes, host: str) -> bytes:
    """A recording that says where it was made.

    Args:
        space: A serialised ``XSpace``.
        host: Name of the machine.

    Returns:
        The same where it says so already.
    """
    if any(number == _HOSTNAMES for number, *_ in fields(space)):
        return space
    name = host.encode()[:127]  # so that one byte holds its size
    return space + bytes([_HOSTNAMES << 3 | 2, len(name)]) + name
