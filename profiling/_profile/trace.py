"""`Trace`: what one process recorded of its devices and of its host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

DeviceKind: TypeAlias = Literal["cpu", "gpu", "tpu"]


@dataclass(slots=True, eq=False)
class OpEvent:
    """One execution of one operation on one device; times in picoseconds.

    Attributes:
        name: Of the HLO instruction; of a kernel that names none, the kernel's.
        program: Name of its program, with its number: ``jit_step(12)``.
        device: Number of the device in its host.
        start: When it started.
        end: When it ended.
        run: Tells executions of the program apart; 0 where the profile does not.
        category: What else says what it does: a TPU's ``hlo_category``, or the name of
            a GPU's kernel.
        line: Number of the stream or thread that it ran on.
        is_named: The profile says which instruction it is of.
    """

    name: str
    program: str
    device: int
    start: int
    end: int
    run: int = 0
    category: str = ""
    line: int = 0
    is_named: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """Something that the host did.

    Attributes:
        name: Such as ``spmd/data:``.
        start: When it started, in picoseconds.
        end: When it ended.
        thread: Number of its thread.
        step: Number of the step that it marks; None if it marks none.
    """

    name: str
    start: int
    end: int
    thread: int
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a program on one device, as a device's own lines mark it.

    Attributes:
        program: Name of the program, with its number.
        device: Number of the device.
        start: When it started.
        end: When it ended.
    """

    program: str
    device: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, repr=False)
class Trace:
    """One file of a profile.

    Attributes:
        host: What it is called.
        source: The file.
        kind: Of its devices.
        chip: As the profile names it, e.g. ``TPU v5 lite``; empty if it does not.
        ops: What ran on its devices.
        runs: Executions that lines of the devices mark; empty where none do.
        device_steps: Number of steps that a device's own line marks; 0 for none.
        spans: What the host did.
        modules: HLO by name of the program, as the profile has it.
        notes: What could not be read.
    """

    host: str
    source: str
    kind: DeviceKind
    chip: str
    ops: tuple[OpEvent, ...]
    runs: tuple[Run, ...]
    device_steps: int
    spans: tuple[Span, ...]
    modules: Mapping[str, bytes]
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the devices that ran something."""
        return tuple(sorted({op.device for op in self.ops}))

    def __repr__(self) -> str:
        return (
            f"Trace({self.host!r}, {self.kind}, {len(self.ops)} operations on "
            f"{len(self.devices)} devices)"
        )
