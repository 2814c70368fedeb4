"""`collectives`: every collective of a step, with what it moves and why."""

from __future__ import annotations

from profiling._collectives.axes import MeshAxes, crosses
from profiling._collectives.collective import Collective
from profiling._collectives.moved import MovedFinder
from profiling._collectives.ops import CollectiveOp, collective_ops
from profiling._hlo.device_groups import DeviceGroups
from profiling._hlo.module import Module
from profiling._targets.target import Target
from profiling._timeline.timeline import Timeline
from spmd._meshes.mesh import Mesh
from spmd._program.program import Program


def collectives(
    module: Module,
    *,
    program: Program | None = None,
    mesh: Mesh | None = None,
    target: Target | None = None,
    timeline: Timeline | None = None,
) -> tuple[Collective, ...]:
    """List every collective of a step.

    Args:
        module: The final module of one device.
        program: What it was compiled from: gives names and roles of its inputs and
            outputs. Without it they are guessed from data flow and metadata.
        mesh: Mesh whose axes are named; default the program's.
        target: What it was compiled for: gives links and hosts.
        timeline: Estimate that gives times.

    Returns:
        Collectives in the order of their computations, then of their starts.

    Raises:
        ValueError: A program, mesh or target of another number of devices, inputs or
            outputs than the module.
    """
    if mesh is None and program is not None:
        mesh = program.mesh
    _check_devices(module, mesh, target)
    ops = collective_ops(module)
    if not ops:
        return ()
    finder = MovedFinder(module, program)
    axes = None if mesh is None else MeshAxes(mesh)
    links = _Links(target)
    names = names_of(ops)
    return tuple(
        _collective(op, name, finder, axes, links, timeline)
        for op, name in zip(ops, names, strict=True)
    )


def names_of(ops: tuple[CollectiveOp, ...]) -> tuple[str, ...]:
    """Name each collective by the instruction that starts it.

    Args:
        ops: Collectives of one module.

    Returns:
        `Collective.name` of each. Where one fusion starts several, the others are named
        by their own instructions.
    """
    found: dict[str, None] = {}
    for op in ops:
        name = op.start.name if op.start.name not in found else op.instruction.name
        while name in found:
            name += "'"
        found[name] = None
    return tuple(found)


def _check_devices(module: Module, mesh: Mesh | None, target: Target | None) -> None:
    number = module.num_partitions * module.num_replicas
    if number == 1:
        return  # or a binary file does not say
    if mesh is not None and mesh.size != number:
        raise ValueError(
            f"module {module.name!r} is for {number} devices, {mesh!r} has "
            f"{mesh.size}; give the mesh that it was partitioned for"
        )
    if target is not None and target.num_devices != number:
        raise ValueError(
            f"module {module.name!r} is for {number} devices, {target.text} has "
            f"{target.num_devices}; give the target that it was compiled for"
        )


def _collective(
    op: CollectiveOp,
    name: str,
    finder: MovedFinder,
    axes: MeshAxes | None,
    links: _Links,
    timeline: Timeline | None,
) -> Collective:
    over: tuple[str, ...] = ()
    if axes is not None:
        over = axes.of_pairs(op.pairs) if op.pairs else axes.of_groups(op.groups)
    link, crosses_hosts = links(op.groups)
    overlap = None if timeline is None else timeline.overlaps.get(name)
    size = op.groups.largest_group
    return Collective(
        name=name,
        kind=op.kind,
        form=op.form,
        axes=over,
        groups=str(op.groups),
        group_size=size,
        num_groups=op.groups.num_devices // size if size else 0,
        link=link,
        crosses_hosts=crosses_hosts,
        dtype=op.dtype,
        operand_bytes=op.operand_bytes,
        output_bytes=op.output_bytes,
        wire_bytes=op.wire_bytes,
        num_runs=op.runs.times,
        moved=finder(op),
        is_async=op.is_async,
        total_s=None if overlap is None else overlap.total_s,
        hidden_s=None if overlap is None else overlap.hidden_s,
        exposed_s=None if overlap is None else overlap.exposed_s,
        overlaps_matmul=overlap is not None and overlap.overlaps_matmul,
    )


class _Links:
    """Slowest link of groups; equal groups are looked at once."""

    def __init__(self, target: Target | None) -> None:
        self._target = target
        self._known: dict[DeviceGroups, tuple[str, bool]] = {}

    def __call__(self, groups: DeviceGroups) -> tuple[str, bool]:
        target = self._target
        if target is None or groups.largest_group < 2:
            return "", False
        if groups not in self._known:
            far = crosses(groups, target.near_devices)
            link = target.links[1 if far else 0].name
            self._known[groups] = link, crosses(groups, target.devices_per_host)
        return self._known[groups]
