"""`Collective`: a collective with what it moves, over which axes, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from profiling._collectives.ops import Form

Role: TypeAlias = Literal[
    "weight gather",
    "gradient reduction",
    "activation",
    "reshard",
    "input",
    "optimizer",
    "scalar",
    "unknown",
]
Phase: TypeAlias = Literal["forward", "backward", "update", ""]


@dataclass(frozen=True, slots=True)
class Moved:
    """What a collective does for one tensor; a combined one has several.

    Attributes:
        role: What the tensor is to the step.
        tensor: Its name (a parameter's, for a gather or reduction of it); empty where
            none is known.
        phase: Where in the step it is needed; empty if unknown.
        module: Path of the module that needs it; empty outside all.
        source: ``file:line`` of the user's code; empty if unknown.
        shape: XLA's text of the operand on one device, e.g. ``bf16[512,2048]``.
        operand_bytes: On one device, of one execution.
        wire_bytes: Its share of the collective's.
    """

    role: Role
    tensor: str
    phase: Phase
    module: str
    source: str
    shape: str
    operand_bytes: int
    wire_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Collective:
    """One collective of a step.

    Attributes:
        name: Of the instruction that starts it; unique in its module.
        kind: Opcode without ``-start``, e.g. ``"reduce-scatter"``.
        form: How the backend wrote it; see `CollectiveOp`.
        axes: Mesh axes that it runs over, outermost first; empty where there is no
            mesh or no set of its axes makes these groups.
        groups: XLA's text of its device groups.
        group_size: Devices that take part together.
        num_groups: Groups side by side.
        link: Slowest link that a group crosses; empty without a target.
        crosses_hosts: Some group has devices of several hosts; False without a target.
        dtype: Of what is moved; several are joined by ``+``.
        operand_bytes: On one device, of one execution.
        output_bytes: On one device, of one execution.
        wire_bytes: Sent by one device in one execution; see `wire_bytes`.
        num_runs: Executions in one step.
        moved: What it moves, most bytes first; their wire bytes add up to its own.
        is_async: Other instructions may run meanwhile.
        total_s: Estimate of its time in one step; None without a timeline.
        hidden_s: Part of it behind compute.
        exposed_s: Part of it that compute waits for.
        overlaps_matmul: A matmul runs between its start and its end.
    """

    name: str
    kind: str
    form: Form
    axes: tuple[str, ...]
    groups: str
    group_size: int
    num_groups: int
    link: str
    crosses_hosts: bool
    dtype: str
    operand_bytes: int
    output_bytes: int
    wire_bytes: int
    num_runs: int
    moved: tuple[Moved, ...]
    is_async: bool
    total_s: float | None = None
    hidden_s: float | None = None
    exposed_s: float | None = None
    overlaps_matmul: bool = False

    @property
    def step_wire_bytes(self) -> int:
        """Bytes one device sends in one step."""
        return self.wire_bytes * self.num_runs

    @property
    def role(self) -> Role:
        """Role of most of what it moves."""
        return self.moved[0].role

    @property
    def phase(self) -> Phase:
        """Phase of most of what it moves."""
        return self.moved[0].phase

    @property
    def tensor(self) -> str:
        """Name of the largest tensor that it moves, and how many more there are."""
        num_more = len(self.moved) - 1
        return self.moved[0].tensor + (f" +{num_more}" if num_more else "")

    @property
    def module(self) -> str:
        """Path of the module that needs most of what it moves."""
        return self.moved[0].module

    @property
    def source(self) -> str:
        """``file:line`` of most of what it moves."""
        return self.moved[0].source

    def __repr__(self) -> str:
        over = ", ".join(self.axes) or self.groups
        return (
            f"Collective({self.name}: {self.kind} over {over}, {self.role} "
            f"{self.tensor or '?'}, {self.wire_bytes} bytes on the wire, "
            f"{self.num_runs}x)"
        )
