"""Replay a schedule on two streams: an estimate of one step.

Compute runs in the order of the schedule. A collective starts when compute reaches its
start and its wire is free (`CollectiveCosts.wire`: one wire for each link); compute
waits at its end until it has arrived. A synchronous one is waited for where it starts.
A loop's body is replayed once and stretched to its trips; of a conditional the branch
that takes longest is taken. Copies between memories (``copy-start``) run beside compute
too, one after the other.

Each second that compute waits is one collective's exposed time: that of the one it
waits for, or of the one before it on the wire. So exposed seconds add up, and ``step_s
= compute_s + exposed_s``. A collective on another link at that moment counts as hidden.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from profiling._collectives.collectives import names_of
from profiling._collectives.ops import CollectiveOp
from profiling._hlo.module import Module
from profiling._step.flops import StepFlops
from profiling._step.model_flops import model_flops
from profiling._targets.target import Target
from profiling._timeline.op_cost import OpCosts
from profiling._timeline.replay import Replay
from profiling._timeline.timeline import Overlap, Timeline

_ROUNDING = 1e-9


def timeline(
    module: Module,
    target: Target,
    ops: tuple[CollectiveOp, ...],
    *,
    model: StepFlops | None = None,
) -> Timeline:
    """Estimate one step of one device.

    Args:
        module: A scheduled module.
        target: What it runs on.
        ops: Its collectives, from `collective_ops`.
        model: What the model needs of one device; None where that is not known.

    Returns:
        Times of all that runs; ``overlaps`` are by `Collective.name`. Collectives of a
        branch that is not taken have no time.

    Raises:
        ValueError: A module that is not scheduled, or for more devices than the target
            has.
    """
    _check(module, target)
    costs = OpCosts(module, target)
    names = dict(zip(ops, names_of(ops), strict=True))
    replay = Replay(module, target, costs, names)
    replay.run(module.entry)
    totals: dict[str, float] = defaultdict(float)
    exposed: dict[str, float] = defaultdict(float)
    for name, seconds, is_exposed in replay.charges:
        (exposed if is_exposed else totals)[name] += seconds
    between = replay.with_matmul_between()
    overlaps = {
        name: _overlap(totals[name], exposed[name], op in between)
        for op, name in names.items()
    }
    flops, dtype = model_flops(replay.matmuls)
    all_exposed = sum(overlap.exposed_s for overlap in overlaps.values())
    communication = sum(overlap.total_s for overlap in overlaps.values())
    return Timeline(
        events=replay.events(),
        step_s=replay.now,
        compute_s=max(0.0, replay.now - all_exposed),
        communication_s=communication,
        hidden_s=sum(overlap.hidden_s for overlap in overlaps.values()),
        exposed_s=all_exposed,
        flops=flops,
        peak_flops=target.peak_flops(dtype if model is None else model.dtype),
        overlaps=MappingProxyType(overlaps),
        matmul_overlap_share=_share(names, overlaps),
        model_flops=None if model is None else model.flops,
    )


def _check(module: Module, target: Target) -> None:
    if not module.is_scheduled:
        raise ValueError(
            f"module {module.name!r} is not scheduled, so its instructions have no "
            f"order; give the one that XLA dumps last, after_optimizations"
        )
    number = module.num_partitions * module.num_replicas
    if number > target.num_devices:
        raise ValueError(
            f"module {module.name!r} is for {number} devices, {target.text} has "
            f"{target.num_devices}; give a target of at least {number} devices"
        )


def _overlap(total: float, exposed: float, between: bool) -> Overlap:
    if abs(total - exposed) <= _ROUNDING * total:
        exposed = total
    return Overlap(total, total - exposed, exposed, between)


def _share(names: Mapping[CollectiveOp, str], overlaps: Mapping[str, Overlap]) -> float:
    """Share of wire bytes with a matmul in between."""
    with_matmul = _bytes(o for o, n in names.items() if overlaps[n].overlaps_matmul)
    whole = _bytes(names)
    return with_matmul / whole if whole else 0.0


def _bytes(ops: Iterable[CollectiveOp]) -> int:
    return sum(op.step_wire_bytes for op in ops)
