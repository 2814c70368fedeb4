"""`MemoryUse`: what a device holds during a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Origin: TypeAlias = Literal["compiled", "estimate"]


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """An input of the step.

    Attributes:
        name: The program's name of it, or the module's.
        role: `spmd.Value`'s role; ``"unknown"`` without a program.
        dtype: XLA's name, e.g. ``bf16``.
        shape: Of the whole.
        spec: How it is split; None where nothing splits it.
        device_bytes: On one device.
        copies: Devices that hold the same piece.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    spec: tuple[str | tuple[str, ...] | None, ...] | None
    device_bytes: int
    copies: int


@dataclass(frozen=True, slots=True)
class PeakBuffer:
    """A temporary that lives when most memory is in use.

    Attributes:
        name: Of the instruction whose value it is.
        num_bytes: On one device.
        shape: XLA's text.
        op_name: What the framework says of it.
        module: Path of the module it is from; empty if unknown.
        phase: ``forward``, ``backward``, ``update`` or empty.
    """

    name: str
    num_bytes: int
    shape: str
    op_name: str
    module: str
    phase: str


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of one device.

    Attributes:
        origin: ``compiled``: the compiler's figures; ``estimate``: from the module.
        argument_bytes: Inputs.
        output_bytes: Outputs, aliased ones included.
        alias_bytes: Outputs that take over an input's memory.
        temp_bytes: Temporaries.
        peak_bytes: Most that is in use at any time.
        total_bytes: What the runtime allocates.
        capacity_bytes: Of the target; None where it is not known.
        argument_bytes_by_role: Parts of `argument_bytes`.
        tensors: Every input, in the order of the program's.
        at_peak: Temporaries alive at the peak, largest first; empty where unknown.
    """

    origin: Origin
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_bytes: int
    total_bytes: int
    capacity_bytes: int | None
    argument_bytes_by_role: Mapping[str, int]
    tensors: tuple[HeldTensor, ...]
    at_peak: tuple[PeakBuffer, ...]

    @property
    def replicated(self) -> tuple[HeldTensor, ...]:
        """Inputs that more than one device holds the same piece of, largest first."""
        found = [t for t in self.tensors if t.copies > 1]
        return tuple(sorted(found, key=lambda t: -t.device_bytes))
