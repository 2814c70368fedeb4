"""Operations of GPUs and TPUs, each of which has a plane of its own.

A TPU's plane has lines for steps, programs and operations; an operation's name there is
the instruction as text, and a collective's start and done are two operations. What is
in flight between them (``Async XLA Ops``) and what sparse cores do has lines and planes
of its own, which are not read: the same times lie between start and done.

A GPU's plane has a line for each stream, whose events are kernels that name the
instruction they are from (`hlo_op`), and copies; beside them lie memory that is held
and the pages that unified memory moves, which no stream runs. Kernels of a CUDA graph
name what launched it. After xprof has read a profile, lines that sum kernels up stand
beside them.

Names are those of XLA's public `xplane_schema.cc`, forms those of its
`cupti_collector.cc`, `cupti_buffer_events.cc` and `rocm_collector.cc`.
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
_HELD = ("MemoryResidency_details", "memalloc_details", "MemFree_details")
"""Stats of events that say what memory is held, not what a stream runs."""
_NO_STREAM = 0x10000000
"""Streams from this number on are made up, for what unified memory moves."""
_64_BITS = 2**64 - 1
_LAUNCHES = re.compile(r"(call|command_buffer\w*|while|conditional)(\.\w+)*")
"""Instructions that launch kernels of others: these then name none of their own."""
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
    return f"{name}({_number_in(stats)})"


def _number_in(stats: dict[str, Value]) -> str:
    """A program's number; a TPU's is a hash of 64 bits, in names without a sign."""
    number = stats.get("program_id", "")
    return str(number & _64_BITS if isinstance(number, int) else number)


def _kernels(events: Iterable[Event], device: int, stream: int) -> list[OpEvent]:
    found = []
    for event in events if stream < _NO_STREAM else ():
        stats = event.stats()
        if any(name in stats for name in _HELD):
            continue
        module = str(stats.get("hlo_module", ""))
        # Of nested ones, such as while.1::fusion.2, the innermost.
        name = str(stats.get("hlo_op", "")).rpartition("::")[2]
        is_named = bool(name) and not _LAUNCHES.fullmatch(name)
        found.append(
            OpEvent(
                name if is_named else event.name,
                _program(module, stats) if module else "",
                device,
                event.start_ps,
                event.end_ps,
                category=event.name,
                line=stream,
                is_named=is_named,
            )
        )
    return found


def _of_line(
    ops: Sequence[tuple[Event, dict[str, Value]]], runs: Sequence[Run], device: int
) -> list[OpEvent]:
    """Operations of one line, each of the program that ran at that time.

    Of a program that was running when the capture began or ended no run may be marked;
    then its number tells which it is.
    """
    starts = [run.start for run in runs]
    numbered = {_number(run.program): run.program for run in runs}
    found = []
    for event, stats in ops:
        at = bisect_right(starts, event.start_ps) - 1
        inside = at >= 0 and event.start_ps <= runs[at].end
        module = str(stats.get("hlo_module", ""))
        number = _number_in(stats)
        known = _program(module, stats) if module else numbered.get(number, "")
        match = _INSTRUCTION.match(event.name)
        found.append(
            OpEvent(
                event.display_name or (match[1] if match else event.name),
                runs[at].program if inside else known,
                device,
                event.start_ps,
                event.end_ps,
                category=str(stats.get("hlo_category", "")),
            )
        )
    return found


def _number(program: str) -> str:
    return program.rpartition("(")[2].removesuffix(")")
