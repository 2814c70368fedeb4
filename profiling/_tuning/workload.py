"""Figures of a program that flag presets compute values from."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from flags import Workload
from profiling._targets.target import Target
from spmd._program.value import is_stacked

if TYPE_CHECKING:
    from flags import Backend
    from spmd._program.program import Program
    from spmd._program.value import Value

_LAYER = re.compile(r"(.*?\.)?(\d+|\*)(?=\.)")


def workload(program: Program, target: Target) -> Workload:
    """The figures of a step on a target.

    Weights are gathered over the axes that split the batch too; over other axes, such
    as ``tensor``, they stay split, so each device gathers its part of a layer. Without
    a batch that is split, all axes of the weights count.

    Args:
        program: The step.
        target: Where it runs.

    Returns:
        Over how many devices most of the weights are gathered, and on how many hosts
        those are (hosts of one NVLink domain count as one); the weights of the largest
        layer (parameters whose names agree up to the first number, as in
        ``layers.3.``; a part of those that are stacked), and all gradients; as many
        bytes as the parameters have. Copies are over those axes of the batch that split
        no weight.
    """
    weights = [v for v in program.inputs if v.role == "parameter"]
    batch = {a for v in program.inputs if v.role == "input" for a in _axes(v)}
    layers: defaultdict[str, float] = defaultdict(float)
    over: Counter[tuple[str, ...]] = Counter()
    total = 0.0
    for value in weights:
        gathered = tuple(a for a in _axes(value) if a in batch or not batch)
        kept = [a for a in _axes(value) if a not in gathered]
        size = value.device_bytes(None) / _num_shards(program, kept)
        found = _LAYER.match(value.name)
        total += size
        if is_stacked(value.name):
            size /= value.shape[0]
        layers[found[0] if found else value.name] += size
        over[gathered] += round(size)
    numbered = [size for name, size in layers.items() if name[-1] in "0123456789*"]
    axes = over.most_common(1)[0][0] if over else ()
    copies = sorted(batch - set(axes))
    largest = max(numbered or layers.values(), default=None)
    return Workload(
        num_shards=_num_shards(program, axes),
        num_hosts=_num_hosts(program, axes, target),
        layer_bytes=None if largest is None else max(1, round(largest)),
        gradient_bytes=round(total) or None,
        num_copy_hosts=_num_hosts(program, copies, target),
    )


def _axes(value: Value) -> tuple[str, ...]:
    """The axes that split a value, as its spec has them."""
    entries = ((e,) if isinstance(e, str) else e or () for e in value.spec or ())
    return tuple(axis for entry in entries for axis in entry)


def _num_shards(program: Program, axes: Collection[str]) -> int:
    return math.prod(program.mesh.sizes[a] for a in axes) if program.mesh else 1


def _num_hosts(program: Program, axes: Collection[str], target: Target) -> int:
    """Hosts that devices which differ in these axes only are on."""
    if program.mesh is None or not axes:
        return 1
    near = target.near_devices
    groups = program.mesh.axis_groups(axes)
    return max(len({device // near for device in group}) for group in groups)


def workload_of(path: Path | None, text: str) -> tuple[Workload | None, Backend]:
    """The same from a file and a target's text.

    Args:
        path: A program's file; None for a target alone.
        text: Such as ``h100:2x8``.

    Returns:
        The figures, None without a program; and what the target is.

    Raises:
        OSError: The file cannot be read.
        ValueError: No program, no target, or a number of devices that does not agree.
    """
    target = Target.parse(text)
    if path is None:
        return None, target.kind
    from spmd._program.program import Program

    program = Program.load(path)
    if program.num_devices != target.num_devices:
        raise ValueError(
            f"{path} is for {program.num_devices} devices, {target.text} has "
            f"{target.num_devices}"
        )
    return workload(program, target), target.kind
