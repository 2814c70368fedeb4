"""Profiles made by hand, in the form that XLA's profilers write.

Names of planes, lines and stats are those of XLA's public `xplane_schema.cc`; times are
given in microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling._profile.xplane_proto import PlaneParts, SpaceParts, XLine
from profiling._schedule import Schedule

PS = 1_000_000  # in a microsecond


class Plane:
    """A plane; `line` adds a line to it, and `event` an event to that."""

    def __init__(self, name: str, **stats: Any) -> None:
        self._parts = PlaneParts(name=name)
        self._events: dict[str, int] = {}
        self._stats: dict[str, int] = {}
        self._lines: list[Any] = []
        self._put(self._parts.stats, stats)

    def line(self, name: str, *, start_us: float = 0) -> Line:
        """Add a line."""
        made = XLine(name=name, timestamp_ns=round(start_us * 1000))
        self._lines.append(made)
        return Line(self, made)

    def event_id(self, name: str, display: str, shared: Mapping[str, Any]) -> int:
        """Number of the events of a name."""
        if name not in self._events:
            number = len(self._events) + 1
            self._events[name] = number
            entry = self._parts.event_metadata.add(key=number)
            entry.value.id = number
            entry.value.name = name
            entry.value.display_name = display
            self._put(entry.value.stats, shared)
        return self._events[name]

    def bytes(self) -> bytes:
        """The plane, serialised."""
        del self._parts.lines[:]
        self._parts.lines.extend(line.SerializeToString() for line in self._lines)
        return self._parts.SerializeToString()

    def _put(self, into: Any, stats: Mapping[str, Any]) -> None:
        for name, value in stats.items():
            if name not in self._stats:
                self._stats[name] = len(self._stats) + 1
                entry = self._parts.stat_metadata.add(key=self._stats[name])
                entry.value.id = self._stats[name]
                entry.value.name = name
            stat = into.add(metadata_id=self._stats[name])
            kinds = {str: "str_value", bytes: "bytes_value", float: "double_value"}
            setattr(stat, kinds.get(type(value), "int64_value"), value)

    def put(self, into: Any, stats: Mapping[str, Any]) -> None:
        """Add stats to a message."""
        self._put(into, stats)


class Line:
    """A line of a plane."""

    def __init__(self, plane: Plane, line: Any) -> None:
        self._plane, self._line = plane, line

    def event(
        self,
        name: str,
        start_us: float,
        us: float,
        /,
        *,
        display: str = "",
        shared: Mapping[str, Any] | None = None,
        **stats: Any,
    ) -> None:
        """Add an event, whose start counts from the start of the line."""
        made = self._line.events.add(
            metadata_id=self._plane.event_id(name, display, shared or {}),
            offset_ps=round(start_us * PS),
            duration_ps=round(us * PS),
        )
        self._plane.put(made.stats, stats)


def metadata(**programs: bytes) -> Plane:
    """The plane with the HLO of programs; `__` in a name stands for its number."""
    plane = Plane("/host:metadata")
    for name, data in programs.items():
        title, _, number = name.partition("__")
        plane.event_id(f"{title}({number})", "", {"Hlo Proto": data})
    return plane


def space(*planes: Plane, host: str = "node0") -> bytes:
    """A profile, serialised."""
    return SpaceParts(
        planes=[plane.bytes() for plane in planes], hostnames=[host]
    ).SerializeToString()


def save(path: Path, *planes: Plane, host: str = "node0") -> Path:
    """Write a profile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(space(*planes, host=host))
    return path


def cpu_step(
    line: Line, at: float, *, device: int = 0, run: int = 1, slow: float = 1.0
) -> float:
    """One run of a program of a matmul, an all-gather and a fusion; returns its end."""
    stats = {
        "hlo_module": "jit_step",
        "program_id": 7,
        "run_id": run,
        "device_ordinal": device,
    }
    for name, us in (("dot.1", 40.0), ("all-gather.2", 20.0), ("add_fusion", 10.0)):
        length = us * slow if name == "dot.1" else us
        line.event(name, at, length, hlo_op=name, **stats)
        at += length
    return at


def cpu_profile(
    path: Path, *, steps: int = 3, pause: float = 5.0, doing: str = "", slow: float = 1
) -> Path:
    """A run on two CPU devices whose host does something between its steps."""
    plane = Plane("/host:CPU")
    python = plane.line("python")
    threads = [plane.line(f"tf_XLAEigen/{n}") for n in range(2)]
    at = 0.0
    for number in range(steps):
        python.event("spmd/step:", at, 1.0, step_num=number + 10)
        end = max(
            cpu_step(thread, at, device=n, run=number + 1, slow=slow)
            for n, thread in enumerate(threads)
        )
        if doing:
            python.event(doing, end, pause)
        at = end + pause
    return save(path, plane, host=path.name.partition(".")[0])


def tpu_profile(path: Path, *, steps: int = 2, scale: float = 1.0) -> Path:
    """A TPU whose all-gather is in flight beside a matmul; host time is in between."""
    plane = Plane("/device:TPU:0", device_type_string="TPU v5 lite")
    step_line, modules, ops = (
        plane.line(name) for name in ("Steps", "XLA Modules", "XLA Ops")
    )
    asynchronous = plane.line("Async XLA Ops")
    for number in range(steps):
        at = 200.0 * number
        step_line.event(str(number), at, 130 * scale)
        modules.event("jit_step(7)", at, 130 * scale, run_id=number + 1)
        asynchronous.event("all-gather-start.1", at, 100 * scale)
        for symbol, name, opcode, start, us, category in (
            (1, "all-gather-start.1", "all-gather-start", 0, 2, "async-start"),
            (2, "fusion.3", "fusion", 2, 78, "convolution fusion"),
            (3, "all-gather-done.1", "all-gather-done", 80, 20, "async-done"),
            (4, "while.2", "while", 100, 30, "while"),
            (5, "multiply_fusion", "fusion", 105, 20, "loop fusion"),
        ):
            ops.event(
                f"%{name} = f32[8]{{0}} {opcode}(%p)",
                at + start * scale,
                us * scale,
                display=name,
                shared={
                    "hlo_category": category,
                    "program_id": 7,
                    "symbol_id": symbol,
                    "flops": 1000 * symbol,
                    "bytes_accessed": 500,
                },
            )
    return save(path, plane, Plane("/host:CPU"))


def gpu_profile(path: Path, *, steps: int = 2, hlo: bool = True) -> Path:
    """A GPU with an NCCL kernel beside a matmul, on streams of their own."""
    plane = Plane("/device:GPU:0", device_vendor="Nvidia")
    compute = plane.line("Stream #13(Compute)")
    talk = plane.line("Stream #24(Compute)")
    derived = plane.line("XLA Ops")  # as xprof leaves it; must not be counted again
    for number in range(steps):
        at = 150.0 * number
        for line, name, kernel, start, us in (
            (
                compute,
                "gemm_fusion_dot.3",
                "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT",
                0,
                60,
            ),
            (talk, "all-gather-start.1", "ncclDevKernel_AllGather_RING_LL", 30, 50),
            (compute, "loop_add_fusion", "loop_add_fusion", 80, 20),
        ):
            named = {"hlo_op": name, "hlo_module": "jit_step", "program_id": 7}
            line.event(kernel, at + start, us, **(named if hlo else {}))
            derived.event(name, at + start, us)
    return save(path, plane, Plane("/host:CPU"))


def replayed(
    path: Path, schedule: Schedule, *, devices: int = 2, steps: int = 3
) -> Path:
    """A GPU run that takes exactly as long as the schedule's estimate says."""
    assert schedule.timeline is not None
    step_us = schedule.timeline.step_s * 1e6
    planes = []
    for device in range(devices):
        plane = Plane(f"/device:GPU:{device}")
        streams = {
            "compute": plane.line("Stream #1(Compute)"),
            "communication": plane.line("Stream #2(Compute)"),
        }
        for step in range(steps):
            for event in schedule.timeline.events:
                streams[event.stream].event(
                    event.name,
                    step * step_us + event.start_s * 1e6,
                    event.duration_s * 1e6,
                    hlo_op=event.name,
                    hlo_module=schedule.module.name,
                    program_id=5,
                )
        planes.append(plane)
    return save(path, *planes, Plane("/host:CPU"))
