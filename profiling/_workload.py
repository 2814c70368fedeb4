"""Figures of a program that flag presets compute values from."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from flags import Workload
from profiling._target import Target

if TYPE_CHECKING:
    from flags import Backend
    from spmd._program import Program
    from spmd._value import Value

_LAYER = re.compile(r"(.*?\.)?\d+(?=\.)")


def workload(program: Program, target: Target) -> Workload:
    """The figures of a step on a target.

    Args:
        program: The step.
        target: Where it runs.

    Returns:
        How many devices split most of the weights, the weights of the largest layer
        (parameters whose names agree up to the first number, as in ``layers.3.``), and
        all gradients; as many bytes as the parameters have.
    """
    weights = [v for v in program.inputs if v.role == "parameter"]
    layers: defaultdict[str, int] = defaultdict(int)
    shards: Counter[int] = Counter()
    for value in weights:
        size = value.device_bytes(None)
        found = _LAYER.match(value.name)
        layers[found[0] if found else value.name] += size
        shards[_num_shards(program, value)] += size
    numbered = [size for name, size in layers.items() if name[-1].isdigit()]
    return Workload(
        num_shards=shards.most_common(1)[0][0] if shards else 1,
        num_hosts=target.num_hosts,
        layer_bytes=max(numbered or layers.values(), default=None),
        gradient_bytes=sum(layers.values()) or None,
    )


def _num_shards(program: Program, value: Value) -> int:
    device = value.device_bytes(program.mesh)
    return max(1, round(value.device_bytes(None) / device)) if device else 1


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
    from spmd._program import Program

    program = Program.load(path)
    if program.num_devices != target.num_devices:
        raise ValueError(
            f"{path} is for {program.num_devices} devices, {target.text} has "
            f"{target.num_devices}"
        )
    return workload(program, target), target.kind
