"""`explain`: what in a step's sharding costs, why, and what removes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from profiling._case import Case
from profiling._find_activations import activations_gathered
from profiling._find_batch import batch_replicated, rows_computed_twice
from profiling._find_dtype import wide_dtype
from profiling._find_gradients import (
    gradients_all_reduced,
    gradients_per_micro_batch,
)
from profiling._find_hosts import tensor_across_hosts
from profiling._find_overlap import synchronous
from profiling._find_padding import padding_waste
from profiling._find_rematerialised import rematerialised
from profiling._find_replicated import large_replicated
from profiling._find_reshards import reshards
from profiling._find_small import many_small
from profiling._find_weights import weights_gathered_again
from profiling._finding import Finding
from profiling._schedule import Schedule
from spmd._program import Program

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
    weights_gathered_again,
    wide_dtype,
)


def explain(program: Program, schedule: Schedule) -> tuple[Finding, ...]:
    """Say what in a step's sharding costs, why it is there, and what removes it.

    Args:
        program: The traced step.
        schedule: What it was compiled to.

    Returns:
        Problems before notes; of each, what compute waits for longest comes first.

    Raises:
        ValueError: A program without a mesh, or a schedule of another program.
    """
    case = Case(program, schedule)
    found = [finding for finder in FINDERS for finding in finder(case)]
    return tuple(sorted(found, key=_order))


def _order(finding: Finding) -> tuple[bool, float, int]:
    return (
        not finding.is_problem,
        -(finding.exposed_s or 0.0),
        -max(finding.wire_bytes, finding.held_bytes),
    )
