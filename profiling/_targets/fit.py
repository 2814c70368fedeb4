"""Targets of a number of devices, to suggest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from profiling._targets.chip import Chip
from profiling._targets.target import Target, targets


def fitting(num_devices: int, *, file: str | Path | None = None) -> tuple[str, ...]:
    """Targets that have a number of devices, one of each chip that can.

    Args:
        num_devices: How many.
        file: YAML of a user's chips, see the head of ``targets.yaml``.

    Returns:
        Their texts.

    Raises:
        OSError: The file cannot be read.
        ValueError: A file that is none.

    Example:
        >>> [t for t in fitting(16) if t.startswith(("h100", "v5e", "v5p", "cpu"))]
        ['h100:2x8', 'v5e:4x4', 'v5p:2x2x4', 'cpu:16']
    """
    found = []
    for target in targets(file).values():
        for text in _candidates(target.chip, num_devices):
            if _has(text, num_devices, file):
                found.append(text)
                break
    return tuple(found)


def _has(text: str, num_devices: int, file: str | Path | None) -> bool:
    try:
        return Target.parse(text, file=file).num_devices == num_devices
    except ValueError:
        return False


def _candidates(chip: Chip, num_devices: int) -> Iterator[str]:
    """Shapes of about a number of devices, the likely ones first."""
    if chip.kind == "cpu":
        yield f"{chip.name}:{num_devices}"
    elif chip.kind == "gpu":
        a_host = min(chip.devices_per_host, num_devices)
        yield f"{chip.name}:{max(1, num_devices // a_host)}x{a_host}"
    elif num_devices % chip.devices_per_chip == 0:
        for shape in _shapes(num_devices // chip.devices_per_chip, chip.grid):
            yield f"{chip.name}:{'x'.join(map(str, shape))}"


def _shapes(number: int, dims: int) -> list[tuple[int, ...]]:
    """Ways to write a number as a product, the most even first."""
    if dims == 1:
        return [(number,)]
    found = [
        (size, *rest)
        for size in range(1, math.isqrt(number) + 1)
        if number % size == 0
        for rest in _shapes(number // size, dims - 1)
        if rest[0] >= size
    ]
    return sorted(found, key=lambda shape: (max(shape) - min(shape), shape))
