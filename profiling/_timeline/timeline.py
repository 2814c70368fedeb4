"""`Timeline`: two streams of one device, as the schedule orders them; an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Stream: TypeAlias = Literal["compute", "communication"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something a device does.

    Attributes:
        name: Of the instruction.
        stream: Where it runs.
        kind: ``matmul``, ``fusion``, ``copy``, an opcode, or a collective's kind.
        start_s: Seconds since the step began.
        duration_s: Seconds that it takes.
        num_runs: Executions it stands for (a loop's are drawn as one event).
        module: Path of the module it is from; empty if unknown.
        phase: ``forward``, ``backward``, ``update`` or empty.
    """

    name: str
    stream: Stream
    kind: str
    start_s: float
    duration_s: float
    num_runs: int
    module: str
    phase: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """How much of a collective is behind compute, over all its executions.

    Attributes:
        total_s: Seconds on the wire.
        hidden_s: Of these, while compute runs.
        exposed_s: Of these, while compute waits.
        overlaps_matmul: A matmul runs between its start and its end.
    """

    total_s: float
    hidden_s: float
    exposed_s: float
    overlaps_matmul: bool


@dataclass(frozen=True, slots=True, repr=False)
class Timeline:
    """An estimate of one step of one device.

    Attributes:
        events: In the order of their starts.
        step_s: Estimated time of a step.
        compute_s: Time in which compute runs.
        communication_s: Time of all collectives.
        hidden_s: Of these, behind compute.
        exposed_s: Of these, while compute waits.
        flops: Floating-point operations of the compiled step's matmuls on one device,
            without those that are computed a second time; see `model_flops` of
            `profiling._step`. Causal attention is among them in full, as a compiled
            step no longer tells it from other attention.
        peak_flops: Target's FLOP/s for the dtype that most of them are in.
        overlaps: By `Collective.name`.
        matmul_overlap_share: Share of wire bytes with a matmul in between.
        model_flops: One device's share of what the model needs, as `StepMetrics` counts
            it in the traced step (`step_flops`): causal attention once. None where no
            traced step was given.
    """

    events: tuple[Event, ...]
    step_s: float
    compute_s: float
    communication_s: float
    hidden_s: float
    exposed_s: float
    flops: float
    peak_flops: float
    overlaps: Mapping[str, Overlap]
    matmul_overlap_share: float
    model_flops: float | None = None

    @property
    def mfu(self) -> float:
        """Model FLOP/s utilisation: ``model_flops / (step_s * peak_flops)``.

        As `StepRecord.mfu`, with an estimated time. Without a traced step it is
        ``flops / (step_s * peak_flops)``, which counts causal attention in full.
        """
        flops = self.flops if self.model_flops is None else self.model_flops
        return flops / (self.step_s * self.peak_flops) if self.step_s else 0.0

    def __repr__(self) -> str:
        return (
            f"Timeline(estimate: step {self.step_s * 1e3:.3g} ms, compute "
            f"{self.compute_s * 1e3:.3g} ms, exposed {self.exposed_s * 1e3:.3g} of "
            f"{self.communication_s * 1e3:.3g} ms communication)"
        )
