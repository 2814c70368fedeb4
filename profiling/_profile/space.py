"""From a file of a profile to a `Trace`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from profiling._hlo.no_gc import no_gc
from profiling._profile.cpu import CpuOps, is_noise
from profiling._profile.device import chip_of, device_of, read_device
from profiling._profile.files import host_of
from profiling._profile.host import HostSpans, doing
from profiling._profile.trace import DeviceKind, OpEvent, Run, Trace
from profiling._profile.xplane import Line, Plane, Space, read_space

_METADATA, _HOST = "/host:metadata", "/host:CPU"
_HLO = ("Hlo Proto", "hlo_proto", "HLO Proto")
_COPIED = ("Memcpy", "Memset")
_MANY = 0.05
_UNTOLD = (
    "devices of this CPU run cannot be told apart in the profile: sums over all "
    "devices are measured, what one device did is not"
)


def read_trace(path: Path) -> Trace:
    """Read one file of a profile.

    Args:
        path: ``*.xplane.pb``.

    Returns:
        What it says. Accelerators' operations where there are some, else the CPU's.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Damaged, or no profile; says where.
    """
    with no_gc():
        return trace_of(read_space(path), path)


def trace_of(space: Space, path: Path) -> Trace:
    """Read a file of a profile that is in memory.

    Args:
        space: Its content.
        path: The file.

    Returns:
        As `read_trace`.

    Raises:
        ValueError: A damaged line; says where.
    """
    ops: list[OpEvent] = []
    runs: list[Run] = []
    kinds: list[DeviceKind] = []
    num_steps, chip = 0, ""
    notes = [f"{path.name}: {error}" for error in space.errors]
    for plane in space.planes:
        device = device_of(plane)
        if device is None:
            continue
        found, executed, marked = read_device(plane, *device)
        if found:
            kinds.append(device[0])
            chip = chip or chip_of(plane)
            num_steps = max(num_steps, marked)
            ops += found
            runs += executed
    notes += _unnamed(ops)
    spans, cpu = HostSpans(), CpuOps()
    for number, line in enumerate(_threads(space.planes)):
        spans.add(number, line)
        if not ops:
            cpu.add(number, line)
    if not ops:
        found, told = cpu.found()
        ops += found
        if not told:
            notes.append(_UNTOLD)
    return Trace(
        host_of(path),
        str(path),
        kinds[0] if kinds else "cpu",
        chip,
        tuple(ops),
        tuple(runs),
        num_steps,
        spans.found(),
        _modules(space.planes),
        tuple(notes),
    )


def _unnamed(ops: Iterable[OpEvent]) -> list[str]:
    """A note where much of a GPU's time is of kernels that name no instruction."""
    unnamed = whole = 0
    for op in ops:
        if op.name.startswith(_COPIED):
            continue
        whole += op.end - op.start
        unnamed += 0 if op.program and op.is_named else op.end - op.start
    if unnamed <= _MANY * whole:
        return []
    return [
        f"{unnamed / whole:.0%} of the kernels' time is of kernels that name no "
        f"instruction, as those of CUDA graphs do; a run with "
        f"XLA_FLAGS=--xla_gpu_enable_command_buffer= names them"
    ]


def _threads(planes: Iterable[Plane]) -> Iterator[Line]:
    for plane in planes:
        if plane.name == _HOST:
            yield from plane.lines(skip=_unread)


def _unread(name: str) -> bool:
    """Whether neither the host's spans nor the CPU's operations have such an event."""
    return is_noise(name) and doing(name) is None


def _modules(planes: Iterable[Plane]) -> dict[str, bytes]:
    """HLO of each program, as the profilers write it into the profile."""
    found: dict[str, bytes] = {}
    for plane in planes:
        if plane.name != _METADATA:
            continue
        for number, (name, _) in plane.names.items():
            stats = plane.shared.get(number, {})
            data = next((stats[n] for n in _HLO if n in stats), None)
            if isinstance(data, bytes):
                found[name if name.endswith(")") else f"{name}({number})"] = data
    return found
