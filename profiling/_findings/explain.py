"""`explain`: what in a step's sharding costs, why, and what removes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from profiling._findings.activations import activations_gathered
from profiling._findings.batch import batch_replicated, rows_computed_twice
from profiling._findings.case import Case
from profiling._findings.dtype import wide_dtype
from profiling._findings.finding import Finding
from profiling._findings.gradients import gradients_all_reduced
from profiling._findings.hosts import tensor_across_hosts, weights_across_hosts
from profiling._findings.micro_batches import gradients_per_micro_batch
from profiling._findings.overlap import synchronous
from profiling._findings.padding import padding_waste
from profiling._findings.rematerialised import rematerialised
from profiling._findings.replicated import large_replicated
from profiling._findings.reshards import reshards
from profiling._findings.small import many_small
from profiling._findings.weights import weights_gathered_again
from profiling._schedule import Schedule
from spmd._program.program import Program

Finder = Callable[[Case], Sequence[Finding]]
FINDERS: tuple[Finder, ...] = (
    activations_gathered,
    batch_replicated,
    rows_computed_twice,
    gradients_all_reduced,
    gradients_per_micro_batch,
    large_replicated,
    many_small,
    padding_waste,
    rematerialised,
    reshards,
    synchronous,
    tensor_across_hosts,
    weights_across_hosts,
    weights_gathered_again,
    wide_dtype,
)


def explain(program: Program, schedule: Schedule) -> tuple[Finding, ...]:
    """Say what in a step's sharding costs, why it is there, and what removes it.

    Args:
        program: The traced step.
        schedule: What it was compiled to.

    Returns:
        What compute waits for longest comes first, where no time is known problems do.

    Raises:
        ValueError: A program without a mesh, or a schedule of another program.
    """
    case = Case(program, schedule)
    found = [finding for finder in FINDERS for finding in finder(case)]
    return tuple(sorted(found, key=_order))


def _order(finding: Finding) -> tuple[float, bool, int]:
    return (
        -(finding.exposed_s or 0.0),
        not finding.is_problem,
        -max(finding.wire_bytes, finding.held_bytes),
    )
