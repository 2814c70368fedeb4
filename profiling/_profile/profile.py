"""`Profile`: what a run really did, step by step, measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from profiling._collectives.collective import Phase
from profiling._profile.trace import DeviceKind
from profiling._schedule import Schedule
from profiling._timeline.timeline import Event

VerdictKind: TypeAlias = Literal[
    "host-bound", "input-bound", "communication-bound", "compute-bound"
]


@dataclass(frozen=True, slots=True)
class Spent:
    """Where the time of a step went, as the mean of some devices; adds up.

    Attributes:
        step_s: From its start to that of the next one.
        compute_s: Some operation computed.
        exposed_s: A collective ran, and nothing computed.
        gap_s: Nothing ran, in the middle of a program.
        input_s: Nothing ran between programs, and the host waited for data.
        host_s: Nothing ran between programs, whatever else the host did.
    """

    step_s: float
    compute_s: float
    exposed_s: float
    gap_s: float
    input_s: float
    host_s: float


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One step.

    Attributes:
        number: As the run counts it, where it marks its steps; else from 0.
        spent: Mean of all devices.
        by_host: Step time by host, mean of its devices.
        is_counted: It is in all means and medians. The last one is not, unless it is
            the only one: how long devices would have waited after it is not known.
    """

    number: int
    spent: Spent
    by_host: Mapping[str, float]
    is_counted: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_host", MappingProxyType(dict(self.by_host)))


@dataclass(frozen=True, slots=True)
class ProfiledHost:
    """One process and its devices.

    Attributes:
        name: Of its file.
        num_devices: Devices that ran something.
        spent: Mean of its devices and steps.
        is_straggler: Others wait for it: its devices compute, or are idle, for longer
            than those of the median host, by a twentieth of the step or more.
    """

    name: str
    num_devices: int
    spent: Spent
    is_straggler: bool


@dataclass(frozen=True, slots=True)
class HostTime:
    """One thing that hosts did; seconds a step, mean of hosts.

    Attributes:
        doing: ``data``, ``checkpoint``, ``compile``, ``trace``, ``dispatch``, ``wait``,
            or ``other``.
        total_s: On the thread that runs the steps.
        idle_s: Of it, while devices were idle between programs.
    """

    doing: str
    total_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something that a host did in the step that `Profile.events` has.

    Attributes:
        doing: As in `HostTime`.
        start_s: Seconds since the step began on the device.
        duration_s: Seconds that it took, as far as they are in the step.
    """

    doing: str
    start_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class ProfiledOp:
    """One instruction; seconds a step, mean of devices.

    Attributes:
        name: Of the instruction, or of the kernel where none is named.
        program: Name of its program.
        kind: ``matmul``, ``fusion``, ``copy``, an opcode, or a collective's kind.
        num_runs: Executions in a step.
        total_s: From its starts to its ends, also while others run.
        own_s: Charged to it alone; all of these and what is idle add up to the step.
        module: Path of the module that it is from; empty if unknown.
        phase: ``forward``, ``backward``, ``update`` or empty.
        source: ``file:line``; empty if unknown.
        flops_per_s: Floating-point operations in a second, as xprof counts them; None
            where it was not asked, or does not know.
        bytes_per_s: Bytes that it read and wrote in a second, as xprof counts them.
        bound_by: What limits it, in xprof's words; empty where it does not say.
    """

    name: str
    program: str
    kind: str
    num_runs: float
    total_s: float
    own_s: float
    module: str
    phase: str
    source: str
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    bound_by: str = ""


@dataclass(frozen=True, slots=True)
class OpClass:
    """All operations of a kind; seconds a step, mean of devices.

    Attributes:
        kind: See `ProfiledOp`.
        is_communication: It is a collective.
        num_ops: Different instructions.
        num_runs: Executions in a step.
        total_s: From their starts to their ends.
        own_s: Charged to them alone.
        predicted_s: Estimate of `own_s` for the main program; None without one.
    """

    kind: str
    is_communication: bool
    num_ops: int
    num_runs: float
    total_s: float
    own_s: float
    predicted_s: float | None = None

    @property
    def ratio(self) -> float | None:
        """Measured by predicted; None without an estimate."""
        return self.own_s / self.predicted_s if self.predicted_s else None


@dataclass(frozen=True, slots=True)
class ProfiledCollective:
    """One collective; seconds a step, mean of devices.

    Attributes:
        name: As in `Collective`.
        program: Name of its program.
        kind: Such as ``all-gather``.
        num_runs: Executions in a step.
        total_s: From its starts to its ends, with the time that a device waits for the
            others to come.
        exposed_s: Of it, while nothing computed.
        fastest_s: Of the device that came last each time, and so waited least.
        wire_bytes: Sent by one device in a step; None without HLO.
        axes: Mesh axes; empty without a mesh.
        group_size: Devices that take part together; 0 without HLO.
        link: Slowest link; empty without a target.
        role: What it is for; ``unknown`` without HLO.
        tensor: What it moves; empty if unknown.
        module: Path of the module that needs it; empty if unknown.
        phase: Where in the step; empty if unknown.
        source: ``file:line``; empty if unknown.
        predicted_s: Estimate of `total_s`; None without a target.
        predicted_exposed_s: Estimate of `exposed_s`.
    """

    name: str
    program: str
    kind: str
    num_runs: float
    total_s: float
    exposed_s: float
    fastest_s: float | None
    wire_bytes: int | None = None
    axes: tuple[str, ...] = ()
    group_size: int = 0
    link: str = ""
    role: str = "unknown"
    tensor: str = ""
    module: str = ""
    phase: Phase = ""
    source: str = ""
    predicted_s: float | None = None
    predicted_exposed_s: float | None = None

    @property
    def hidden_s(self) -> float:
        """Of its time, while something else was charged: compute, or a collective."""
        return max(0.0, self.total_s - self.exposed_s)

    @property
    def wait_s(self) -> float | None:
        """Of its time, waiting for the last device; None where that is not known."""
        return None if self.fastest_s is None else self.total_s - self.fastest_s

    @property
    def bytes_per_s(self) -> float | None:
        """Sent by one device while it took part, without waiting for the others."""
        seconds = self.total_s if self.fastest_s is None else self.fastest_s
        return self.wire_bytes / seconds if self.wire_bytes and seconds else None

    @property
    def ratio(self) -> float | None:
        """Measured by predicted; None without an estimate."""
        return self.total_s / self.predicted_s if self.predicted_s else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds a run up.

    Attributes:
        kind: In one word.
        why: The figures behind it, in a sentence.
        shares: Of the step, by ``compute``, ``communication``, ``gaps``, ``input`` and
            ``host``; they add up to 1.
    """

    kind: VerdictKind
    why: str
    shares: Mapping[str, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", MappingProxyType(dict(self.shares)))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Profile:
    """What was measured in one session.

    Attributes:
        source: File or folder.
        device_kind: ``cpu``, ``gpu`` or ``tpu``.
        chip: As the profile names it; empty if it does not.
        program: Name of the program that devices spent most time in.
        hosts: Processes, by name.
        steps: In their order.
        spent: Mean of all devices and of the steps that count.
        op_classes: By time of their own, most first.
        ops: By time of their own, most first.
        collectives: By exposed time, most first.
        host_times: What hosts did, in an order that is always the same.
        verdict: What holds the run up.
        schedule: What the compiler planned; None without HLO of the program.
        events: One step of one device, measured: the one with the median time.
        host_events: What the host did in that step, on the thread that runs the steps.
        event_device: Host and device of `events`, and number of the step.
        notes: What is not known here, and what would give it.
    """

    source: str
    device_kind: DeviceKind
    chip: str
    program: str
    hosts: tuple[ProfiledHost, ...]
    steps: tuple[ProfiledStep, ...]
    spent: Spent
    op_classes: tuple[OpClass, ...]
    ops: tuple[ProfiledOp, ...]
    collectives: tuple[ProfiledCollective, ...]
    host_times: tuple[HostTime, ...]
    verdict: Verdict
    schedule: Schedule | None
    events: tuple[Event, ...]
    host_events: tuple[HostEvent, ...]
    event_device: tuple[str, int, int]
    notes: tuple[str, ...] = ()

    @property
    def step_s(self) -> float:
        """Median time of the steps that count."""
        return median(s.spent.step_s for s in self.steps if s.is_counted)

    @property
    def spread_s(self) -> float:
        """Median distance of a step's time from the median."""
        times = [s.spent.step_s for s in self.steps if s.is_counted]
        return median(abs(time - self.step_s) for time in times)

    @property
    def num_devices(self) -> int:
        """Devices of all hosts."""
        return sum(host.num_devices for host in self.hosts)

    @property
    def predicted_step_s(self) -> float | None:
        """Estimate of the step's time; None without a target."""
        return None if self.schedule is None else self.schedule.step_s

    def as_json(self) -> dict[str, Any]:
        """All of it as data; `profiling/schema/profile.json` describes the form.

        Returns:
            Dicts, lists, strings, numbers, bools and None.
        """
        from profiling._profile.as_json import as_json

        return as_json(self)

    def save_html(self, path: str | Path) -> Path:
        """Write a page that shows it, in one file.

        Args:
            path: Where to.

        Returns:
            The path.
        """
        from profiling._profile.html import html

        path = Path(path)
        path.write_text(html(self.as_json()), encoding="utf-8")
        return path

    def show(self, *, top: int = 10) -> None:
        """Print it for people, as wide as the terminal.

        Args:
            top: Collectives and operations to list.
        """
        from rich.console import Console

        from profiling._profile.show import show_profile

        show_profile(self, Console(), top=top)

    def __repr__(self) -> str:
        return (
            f"Profile({self.program!r} on {self.num_devices} {self.device_kind} "
            f"devices, {len(self.steps)} steps of {self.step_s * 1e3:.3g} ms, "
            f"{self.verdict.kind})"
        )
