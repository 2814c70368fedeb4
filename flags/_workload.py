"""`Workload`: the figures of a step that presets compute values from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

SHARE = 0.5
"""Of a layer, what one collective carries: see ``data/presets/gpu-overlap.yaml``."""

DEFAULT_BYTES = 31457287
"""XLA's own thresholds, in torch_xla 2.9.0 and jaxlib 0.10.2."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Figures of a step and of where it runs.

    Attributes:
        num_shards: Devices that a weight is gathered from.
        num_hosts: Hosts that those devices are on.
        layer_bytes: Weights of the largest layer, as one device gathers them (what
            tensor parallelism splits stays split); None if unknown.
        gradient_bytes: All gradients of one device, before they are scattered; None if
            unknown.
        num_copy_hosts: Hosts that copies of a shard are on: over these, gradients are
            summed once they are scattered.

    Raises:
        ValueError: A figure that is not above zero.
    """

    num_shards: int
    num_hosts: int = 1
    layer_bytes: int | None = None
    gradient_bytes: int | None = None
    num_copy_hosts: int = 1

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Workload.{name} is {value}; it must be 1 or more")


def _all_gather_threshold(workload: Workload) -> int:
    """The power of two next to half a layer: 103 MB of weights give 64 MB."""
    return _near(_layer_bytes(workload) * SHARE)


def _reduce_scatter_threshold(workload: Workload) -> int:
    """The same, in scattered bytes (64 MB on 16 shards are 4 MB); never above XLA's."""
    carried = _all_gather_threshold(workload)
    if workload.gradient_bytes is not None:
        carried = min(carried, workload.gradient_bytes)
    return max(1, min(carried // workload.num_shards, DEFAULT_BYTES))


def _all_reduce_threshold(workload: Workload) -> int:
    """Next to a layer's scattered gradients (436 MB on 8: 64 MB); never below XLA's."""
    return max(_near(_layer_bytes(workload) / workload.num_shards), DEFAULT_BYTES)


def _layer_bytes(workload: Workload) -> int:
    if workload.layer_bytes is None:
        raise ValueError("needs Workload.layer_bytes, which is not given")
    return workload.layer_bytes


def _near(size: float) -> int:
    return 2 ** round(math.log2(max(1.0, size)))


FORMULAS: Mapping[str, Callable[[Workload], int]] = {
    "all_gather_threshold": _all_gather_threshold,
    "reduce_scatter_threshold": _reduce_scatter_threshold,
    "all_reduce_threshold": _all_reduce_threshold,
}
"""Values that presets compute, by name."""

CONDITIONS: Mapping[str, Callable[[Workload], bool]] = {
    "several hosts": lambda workload: workload.num_hosts > 1,
    "one host": lambda workload: workload.num_hosts == 1,
    "several shards": lambda workload: workload.num_shards > 1,
    "copies on several hosts": lambda workload: (
        workload.num_shards > 1 and workload.num_copy_hosts > 1
    ),
}
"""When a preset's flag is set, by name."""
