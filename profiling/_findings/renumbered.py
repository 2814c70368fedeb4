"""`renumbered_s`: how long a step would take with its devices in another order."""

from __future__ import annotations

import dataclasses

from profiling._collectives.ops import CollectiveOp, collective_ops
from profiling._findings.case import Case
from profiling._hlo.device_groups import DeviceGroups
from profiling._timeline.simulate import timeline
from spmd._meshes.mesh import Mesh


def renumbered_s(case: Case, mesh: Mesh) -> float | None:
    """Estimate a step on a mesh of the same axes and sizes in another order.

    Another order of the axes gives each device another number and changes nothing else:
    pieces, collectives and their bytes stay. So the schedule that there is is replayed
    with the devices of each group renumbered, and their links are the other order's. A
    compiler may order some instructions otherwise then; that is left out.

    Args:
        case: The step.
        mesh: The other mesh.

    Returns:
        Seconds; None for other sizes, or where the step has no timeline itself.
    """
    target = case.schedule.target
    if target is None or case.schedule.timeline is None:
        return None
    if mesh.sizes != case.mesh.sizes:
        return None
    module, number = case.schedule.module, _numbers(case.mesh, mesh)
    ops = tuple(_renumbered(op, number) for op in collective_ops(module))
    return timeline(module, target, ops).step_s


def _numbers(old: Mesh, new: Mesh) -> dict[int, int]:
    """The new number of each device.

    Of ``fsdp=2, replica=2`` device 1 is the first of `fsdp` and the second of
    `replica`; of ``replica=2, fsdp=2`` that place is device 2's.
    """
    order = [new.axis_names.index(axis) for axis in old.axis_names]
    there = new.devices.transpose(order)
    return dict(zip(old.devices.flat, there.flat, strict=True))


def _renumbered(op: CollectiveOp, number: dict[int, int]) -> CollectiveOp:
    groups = op.groups
    if not groups.is_all:
        listed = tuple(tuple(number[d] for d in g) for g in groups.groups)
        groups = DeviceGroups(listed)
    pairs = tuple((number[a], number[b]) for a, b in op.pairs)
    return dataclasses.replace(op, groups=groups, pairs=pairs)
