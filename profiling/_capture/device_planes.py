"""Planes of CPU devices, from which xprof makes its tables of operations.

XLA's CPU client has no plane for a device: its operations lie on threads of the host,
where xprof does not look for them. It tabulates planes whose names start with
``/device:TPU:`` or ``/device:GPU:``. With a GPU's plane it calls the whole run one of
GPUs; with a TPU's only where the name ends in a number. So these planes are called
``/device:TPU:CPU 0 (...)``: operations and steps are read, and the run stays one on a
CPU. Tried with xprof 2.24.2; what else is done here for it is by its
``xplane_to_op_metrics_db.cc``, ``xplane_to_step_events.cc`` and
``step_events_to_steps_db.cc``:

- Operations are told apart by the program and the symbol of their kind, and what lies
  within one is taken off its own time.
- What planes say of steps is summed up, where one says nothing it is dropped unless no
  plane before has said anything. So the last plane alone has steps: its device stands
  for the others.
- A step's time goes to events with a correlation. What communicates is known by a name
  that starts with NCCL, so collectives have stand-ins of such a name.
- A group is 64 bits wide and a step's number 32. The host's groups, which xprof counts
  from 0, name what has the same group in the trace viewer; so ours are above them all,
  and are the step's number in the lower 32 bits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling._capture.one_line import Span, one_line
from profiling._capture.op_stats import op_stats, op_text
from profiling._hlo.module import Module
from profiling._hlo.no_gc import no_gc
from profiling._profile.device import device_of
from profiling._profile.hlo import modules_of
from profiling._profile.host import marked_steps
from profiling._profile.measure import by_device
from profiling._profile.names import OpNames
from profiling._profile.runs import (
    Execution,
    Window,
    is_same,
    main_program,
    runs_per_step,
    windows,
)
from profiling._profile.space import trace_of
from profiling._profile.sweep import HOLDS, MOVES, Level
from profiling._profile.trace import OpEvent, Trace
from profiling._profile.xplane import Value, parse_space
from profiling._profile.xplane_write import PlaneWriter, with_planes

PREFIX = "/device:TPU:CPU "
"""What the names of these planes start with."""

_NAME = PREFIX + "{} (no TPU: read from the host's threads by spmd)"
_STATS: dict[str, Value] = {"added_by": "spmd", "device_type_string": "CPU"}
_STEPS, _MODULES, _OPS, _COLLECTIVES = -559038737, 1, 2, 3  # the first is xprof's own
_STAND_IN = "NCCL stand-in: "
_GROUPS = 1 << 32
_WARNING = (
    "This ran on CPU devices. Their operations are on threads of the host; for the "
    "tables, spmd put them on planes /device:TPU:CPU as well. A TensorCore in a table "
    "is a CPU device, and shares of a peak are 0 since no peak is known."
)


def with_device_planes(space: bytes, path: Path) -> bytes:
    """Add planes of the CPU devices that ran.

    Args:
        space: A serialised ``XSpace``.
        path: The file that it will be.

    Returns:
        The same where accelerators or nothing ran, or where it has such planes.

    Raises:
        ValueError: A damaged profile.
    """
    with no_gc():
        parsed = parse_space(space, source=str(path))
        names = [plane.name for plane in parsed.planes]
        if any(name.startswith(PREFIX) for name in names):
            return space
        if any(device_of(plane) for plane in parsed.planes):
            return space
        trace = trace_of(parsed, path)
        if not trace.ops:
            return space
        return with_planes(space, _planes(trace), warning=_WARNING)


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    start: int
    end: int


def _planes(trace: Trace) -> list[bytes]:
    main = main_program([trace])
    modules = modules_of([trace], main, [])
    kinds = _Kinds(modules)
    once = {program: names.once for program, names in kinds.names.items()}
    devices = by_device(trace, once)
    steps = _steps(trace, devices[max(devices)], main)
    planes: list[bytes] = []
    for number, (device, done) in enumerate(devices.items()):
        # Not the device for a number: jax's second process begins at 2048, and the
        # trace viewer has 1000 for each host.
        plane = PlaneWriter(_NAME.format(device), number=number, stats=_STATS)
        _fill(plane, done, kinds, steps if device == max(devices) else ())
        planes.append(plane.bytes())
    return planes


class _Kinds:
    """What is known of each operation, made once for all devices."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.names = {program: OpNames(module) for program, module in modules.items()}
        self._modules = modules
        self._unknown = OpNames(None)
        self._found: dict[tuple[str, str], tuple[Level, str, dict[str, Value]]] = {}

    def __call__(self, op: OpEvent) -> tuple[Level, str, dict[str, Value]]:
        """Level, text and stats of an operation."""
        key = op.program, op.name
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._of(op, len(self._found) + 1)
        return found

    def _of(self, op: OpEvent, number: int) -> tuple[Level, str, dict[str, Value]]:
        info = self.names.get(op.program, self._unknown)(op.name, op.category)
        stats: dict[str, Value] = {
            "hlo_op": op.name,
            "hlo_module": op.program.partition("(")[0],
            "program_id": _program_id(op.program),
            "symbol_id": number,
        }
        module = self._modules.get(op.program)
        try:
            instruction = None if module is None else module.instruction(op.name)
        except KeyError:
            instruction = None
        if module is None or instruction is None:
            return info.level, op.name, {**stats, "hlo_category": info.kind}
        text = op_text(instruction)
        return info.level, text, {**stats, **op_stats(module, instruction)}


def _program_id(program: str) -> int:
    number = program.rpartition("(")[2].removesuffix(")")
    return int(number) if number.isdecimal() else 0


def _steps(trace: Trace, done: Sequence[Execution], main: str) -> list[_Step]:
    """Where the steps of a device begin and end.

    Where each of the host's steps holds what the device did in it, as in a loop that
    reads its loss, these are the steps. Elsewhere the host is ahead of the device: then
    they are those of `read_profile`, from a start of the main program to the next.
    """
    count = sum(is_same(e.program, main) for e in done)
    per_step, _ = runs_per_step([trace], [count])
    found = windows(done, main, per_step)
    marks = marked_steps(trace.spans)
    if not len({mark.step for mark in marks}) == len(marks) == len(found):
        return [_Step(i, window.start, window.end) for i, window in enumerate(found)]
    pairs = list(zip(marks, found, strict=True))
    if all(
        mark.start <= window.start and _worked_until(done, window) <= mark.end
        for mark, window in pairs
    ):
        return [_Step(mark.step or 0, mark.start, mark.end) for mark in marks]
    return [_Step(mark.step or 0, w.start, w.end) for mark, w in pairs]


def _worked_until(done: Sequence[Execution], window: Window) -> int:
    """When the device had done what it began in a window."""
    return max(e.end for e in done if window.start <= e.start < window.end)


def _fill(
    plane: PlaneWriter,
    done: Sequence[Execution],
    kinds: _Kinds,
    steps: Sequence[_Step],
) -> None:
    starts = [done[0].start, *(step.start for step in steps)]
    first = min(starts) // 1000 * 1000
    lines = {
        number: plane.line(name, number=number, start_ps=first)
        for number, name in (
            (_STEPS, "Steps"),
            (_MODULES, "XLA Modules"),
            (_OPS, "XLA Ops"),
            (_COLLECTIVES, "Collectives, as xprof's steps know them"),
        )
        if steps or number in (_MODULES, _OPS)
    }
    for execution in done:
        lines[_MODULES].events.add(
            metadata_id=plane.event_id(execution.program, key=(execution.program,)),
            offset_ps=execution.start - first,
            duration_ps=execution.end - execution.start,
        )
    group = plane.stat_id("group_id")
    for step in steps:
        event = lines[_STEPS].events.add(
            metadata_id=plane.event_id(str(step.number)),
            offset_ps=step.start - first,
            duration_ps=step.end - step.start,
        )
        event.stats.add(metadata_id=group, int64_value=_GROUPS + step.number)
    _operations(plane, lines, done, kinds, steps, first)


def _operations(
    plane: PlaneWriter,
    lines: Mapping[int, Any],
    done: Sequence[Execution],
    kinds: _Kinds,
    steps: Sequence[_Step],
    first: int,
) -> None:
    ops = sorted((op for e in done for op in e.ops), key=lambda o: (o.start, -o.end))
    known: dict[tuple[str, str], tuple[Level, int]] = {}
    of_op: list[tuple[Level, int]] = []
    for op in ops:
        key = op.program, op.name
        found = known.get(key)
        if found is None:
            level, text, stats = kinds(op)
            number = plane.event_id(text, key=key, display_name=op.name, stats=stats)
            found = known[key] = level, number
        of_op.append(found)
    spans: list[Span] = [
        (op.start, op.end, of[0]) for op, of in zip(ops, of_op, strict=True)
    ]
    events = lines[_OPS].events
    starts = [step.start for step in steps]
    group, correlation = plane.stat_id("group_id"), plane.stat_id("correlation_id")
    for op, (level, number), (start, end) in zip(
        ops, of_op, one_line(spans), strict=True
    ):
        event = events.add(
            metadata_id=number, offset_ps=start - first, duration_ps=end - start
        )
        at = bisect_right(starts, start) - 1 if starts else -1
        if at < 0 or start >= steps[at].end or level == HOLDS:
            continue
        if level == MOVES:
            event = lines[_COLLECTIVES].events.add(
                metadata_id=plane.event_id(_STAND_IN + op.name),
                offset_ps=start - first,
                duration_ps=end - start,
            )
        event.stats.add(metadata_id=group, int64_value=_GROUPS + steps[at].number)
        event.stats.add(metadata_id=correlation, int64_value=number)
