"""What `tune` varies: flags of combining, scheduling and overlap, each with values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flags import Workload
from flags._library import Backend
from flags._workload import DEFAULT_BYTES
from profiling._compiling.compiled import FlagValue

SHARES = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)
"""Of a layer's weights, what one collective carries."""

# Bytes to go by where the layers are not known: with SHARES from 8 to 256 MB.
_USUAL_LAYER = 64 << 20


@dataclass(frozen=True, slots=True)
class Knob:
    """A flag that is varied.

    Attributes:
        name: Of the flag.
        values: To try, in order; None is the compiler's default.
        reason: What it changes.
        is_size: Values are bytes, so a value between two others has its place.
    """

    name: str
    values: tuple[FlagValue | None, ...]
    reason: str
    is_size: bool = False

    def rungs(self, current: FlagValue | None) -> tuple[FlagValue | None, ...]:
        """The values in order, with the current one among them.

        Args:
            current: Value now; None for the default.

        Returns:
            The ladder to step along.

        Example:
            >>> Knob("xla_x", (None, 2, 4), "").rungs(3)
            (None, 2, 4, 3)
        """
        if current in self.values:
            return self.values
        both = (*self.values, current)
        return tuple(sorted(both, key=_size)) if self.is_size else both


def knobs(
    workload: Workload, kind: Backend, *, accepts: Callable[[str], bool]
) -> tuple[Knob, ...]:
    """What to vary for a step.

    Args:
        workload: Its figures.
        kind: What it is compiled for.
        accepts: Whether the installed compiler takes a flag.

    Returns:
        Those that matter most first; none for a CPU, whose collectives wait in any
        case.
    """
    found = {"gpu": _gpu, "tpu": _tpu}
    of_kind = found[kind](workload) if kind in found else ()
    return tuple(knob for knob in of_kind if accepts(knob.name))


def _gpu(workload: Workload) -> tuple[Knob, ...]:
    layer = workload.layer_bytes or _USUAL_LAYER
    return (
        _threshold(
            "xla_gpu_all_gather_combine_threshold_bytes",
            layer,
            "how many bytes of weights one all-gather carries",
        ),
        _threshold(
            "xla_gpu_reduce_scatter_combine_threshold_bytes",
            layer // workload.num_shards,
            "how many scattered bytes of gradients one reduce-scatter carries",
        ),
        _threshold(
            "xla_gpu_all_reduce_combine_threshold_bytes",
            layer,
            "how many bytes one all-reduce carries",
        ),
        Knob(
            "xla_gpu_enable_analytical_latency_estimator",
            (None, True),
            "another estimate of times for the scheduler",
        ),
        Knob(
            "xla_gpu_experimental_parallel_collective_overlap_limit",
            (None, 2, 4),
            "how many collectives the scheduler lets run at a time",
        ),
        Knob(
            "xla_gpu_threshold_for_windowed_einsum_mib",
            (None, 0),
            "splits a matmul and the collective beside it into steps that overlap",
        ),
    )


def _tpu(workload: Workload) -> tuple[Knob, ...]:
    return (
        Knob(
            "xla_tpu_enable_async_collective_fusion_fuse_all_reduce",
            (None, True),
            "splits an all-reduce over the computations that hide it",
        ),
        Knob(
            "xla_enable_async_all_reduce",
            (None, True),
            "lets an all-reduce run while others compute",
        ),
        Knob(
            "xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter",
            (None, True),
            "splits a reduce-scatter over the computations that hide it",
        ),
        Knob(
            "xla_latency_hiding_scheduler_rerun",
            (None, 2),
            "lets the scheduler try again with less memory",
        ),
        Knob(
            "xla_jf_spmd_threshold_for_windowed_einsum_mib",
            (None, 1_000_000),
            "keeps a matmul and the collective beside it whole",
        ),
        Knob(
            "xla_tpu_enable_async_collective_fusion",
            (None, False),
            "splits no collective over the computations that hide it",
        ),
    )


def _threshold(name: str, whole_bytes: int, reason: str) -> Knob:
    """Powers of two next to shares of `whole_bytes`, the default where it belongs."""
    sizes = {2 ** round(math.log2(max(1.0, whole_bytes * share))) for share in SHARES}
    # 32 MB for the default of 30 would be a step that changes nothing.
    sizes = {size for size in sizes if abs(math.log2(size / DEFAULT_BYTES)) > 0.25}
    values = sorted([*sizes, None], key=_size)
    return Knob(name, tuple(values), reason, is_size=True)


def _size(value: FlagValue | None) -> float:
    return DEFAULT_BYTES if value is None else float(value)
