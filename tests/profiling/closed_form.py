"""What fully sharded data parallel has to move, by the textbook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from profiling._collectives.collective import Collective, Moved
from spmd import Program
from spmd._meshes.spec import entry_axes


def sharded_bytes(program: Program, axis: str = "fsdp") -> dict[str, int]:
    """Bytes of each parameter that `axis` splits, gathered over that axis alone.

    An embedding's table is none of them: its rows are exchanged.
    """
    assert program.mesh is not None
    ways = program.mesh.axis_size(axis)
    return {
        value.name: value.device_bytes(program.mesh) * ways
        for value in program.inputs
        if value.role == "parameter"
        and "embed" not in value.name
        and any(axis in entry_axes(entry) for entry in value.spec or ())
    }


def fsdp_ratios(
    program: Program, collectives: Iterable[Collective], axis: str = "fsdp"
) -> Mapping[str, float]:
    """Wire bytes of a step over those of the closed form, by role.

    With n devices along the axis, each parameter's (n-1)/n bytes are gathered twice, in
    forward and in backward, and its gradient's are reduced and scattered once. A ratio
    below 1 for gathers means that some are kept or cast down; 2 for reductions, that
    they are all-reduces, as on a CPU.
    """
    assert program.mesh is not None
    ways = program.mesh.axis_size(axis)
    once = sum(sharded_bytes(program, axis).values()) * (ways - 1) / ways
    found = Counter[str]()
    for collective in collectives:
        for moved in collective.moved:
            found[moved.role] += moved.wire_bytes * collective.num_runs
    return {
        "weight gather": found["weight gather"] / (2 * once),
        "gradient reduction": found["gradient reduction"] / once,
    }


def arrays(collectives: Iterable[Collective], role: str) -> list[Moved]:
    """Every array of a role, as often as it is moved."""
    return [
        moved
        for collective in collectives
        for moved in collective.moved
        if moved.role == role
        for _ in range(collective.num_runs)
    ]
