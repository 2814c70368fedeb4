"""Operations of GPUs and TPUs, each of which has a plane of its own.

A TPU's plane has lines for steps, programs and operations; an operation's name there is
the instruction as text, and a collective's start and done are two operations. A GPU's
plane has a line for each stream, whose events are kernels that name the instruction
they are from (`hlo_op`); after xprof has read a profile, lines that sum these up stand
beside them. Names are those of XLA's public `xplane_schema.cc`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from profiling._profile.trace import DeviceKind, OpEvent, Run
from profiling._profile.xplane import Event, Plane, Value

_PLANE = re.compile(r"/device:(GPU|TPU):(\d+)")
_STREAM = re.compile(r"Stream #?(\d+)")
_INSTRUCTION = re.compile(r"%?([\w.\-]+) = ")
_OPS, _MODULES, _STEPS = "XLA Ops", "XLA Modules", "Steps"
_CHIP = ("device_type_string", "device_type", "gpu_device_name")


def device_of(plane: Plane) -> tuple[DeviceKind, int] | None:
    """Which device a plane is of.

    Args:
        plane: Any plane.

    Returns:
        Its kind and its number; None for a plane of something else, such as a TPU's
        sparse cores.
    """
    match = _PLANE.fullmatch(plane.name)
    if match is None:
        return None
    return ("gpu" if match[1] == "GPU" else "tpu"), int(match[2])


def chip_of(plane: Plane) -> str:
    """What a plane calls its device.

    Args:
        plane: Of a device.

    Returns:
        Such as ``TPU v5 lite``; empty if it does not say.
    """
    return next((str(plane.stats[n]) for n in _CHIP if plane.stats.get(n)), "")


def read_device(
    plane: Plane, kind: DeviceKind, device: int
) -> tuple[list[OpEvent], list[Run], int]:
    """Read what a device did.

    Args:
        plane: Its plane.
        kind: Of the device.
        device: Its number.

    Returns:
        Operations, executions of programs, and how many steps are marked.

    Raises:
        ValueError: A damaged line.
    """
    kernels: list[OpEvent] = []
    ops: list[tuple[Event, dict[str, Value]]] = []
    runs: list[Run] = []
    num_steps = 0
    for line in plane.lines():
        stream = _STREAM.match(line.name)
        if line.name.startswith(_STEPS):
            num_steps = len(line.events)
        elif line.name.startswith(_MODULES):
            runs += [
                Run(_program(e.name, e.stats()), device, e.start_ps, e.end_ps)
                for e in line.events
            ]
        elif line.name.startswith(_OPS):
            ops += [(e, e.stats()) for e in line.events]
        elif stream is not None:
            kernels += _kernels(line.events, device, int(stream[1]))
    runs.sort(key=lambda run: run.start)
    if kernels:  # a GPU; what xprof derived from them is not counted again
        return kernels, runs, num_steps
    return _of_line(ops, runs, device), runs, num_steps


def _program(name: str, stats: dict[str, Value]) -> str:
    """``jit_step(12)``: a module's name and number."""
    if name.endswith(")") or "program_id" not in stats:
        return name
    return f"{name}({stats['program_id']})"


def _kernels(events: Iterable[Event], device: int, stream: int) -> list[OpEvent]:
    found = []
    for event in events:
        stats = event.stats()
        module = str(stats.get("hlo_module", ""))
        # Of nested ones, such as while.1::fusion.2, the innermost.
        name = str(stats.get("hlo_op", "")).rpartition("::")[2]
        found.append(
            OpEvent(
                name or event.name,
                _program(module, stats) if module else "",
                device,
                event.start_ps,
                event.end_ps,
                category=event.name,
                line=stream,
            )
        )
    return found


def _of_line(
    ops: Sequence[tuple[Event, dict[str, Value]]], runs: Sequence[Run], device: int
) -> list[OpEvent]:
    """Operations of one line, each of the program that ran at that time."""
    starts = [run.start for run in runs]
    found = []
    for event, stats in ops:
        at = bisect_right(starts, event.start_ps) - 1
        inside = at >= 0 and event.start_ps <= runs[at].end
        module = str(stats.get("hlo_module", ""))
        program = runs[at].program if inside else _program(module, stats)
        match = _INSTRUCTION.match(event.name)
        found.append(
            OpEvent(
                event.display_name or (match[1] if match else event.name),
                program,
                device,
                event.start_ps,
                event.end_ps,
                category=str(stats.get("hlo_category", "")),
            )
        )
    return found
