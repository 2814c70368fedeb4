"""Seconds of one collective: latency for each step, and bytes at its link's bandwidth.

The alpha-beta model (Thakur, Rabenseifner and Gropp, 2005) with NCCL's steps: a ring of
n devices takes n-1 steps, twice for an all-reduce; an all-to-all is n-1 sends. On a
torus a step is a hop, and a ring of n devices is n/2 hops in two directions.

A group that crosses hosts (NVLink domains, slices) works on two levels: what leaves a
host is spread over the links of all its devices in the group, and both levels go on at
the same time (as NCCL's rings through every network card do), so the slower one counts.

Left out: switches that reduce in the network (NVLink SHARP), trees and LL128 inside of
a host, and congestion.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from profiling._collectives.ops import CollectiveOp
from profiling._hlo.device_groups import DeviceGroups
from profiling._targets.chip import Link
from profiling._targets.target import Target
from profiling._timeline.efficiency import EFFICIENCY, LOW_LATENCY

_PEERS_AT_ONCE = 8
"""Peers that NCCL sends to in one round of a send/recv group on the network."""
_ENOUGH_PAIRS = 64


@dataclass(frozen=True, slots=True)
class _Group:
    """The group that takes longest.

    Attributes:
        size: Devices.
        domains: Hosts (NVLink domains, slices) that it crosses.
        hops: Steps of a ring inside of one of them.
        cut: On a torus, the longest dim's size for each port that crosses its middle.
        bandwidth: Bytes per second of a device inside.
        near: Link inside.
        far: Link between; None if it crosses none.
    """

    size: int
    domains: int
    hops: int
    cut: float
    bandwidth: float
    near: Link
    far: Link | None

    @property
    def local(self) -> int:
        """Devices of one domain."""
        return max(1, self.size // self.domains)


class CollectiveCosts:
    """Costs of collectives on a target; each set of groups is looked at once.

    Args:
        target: What the program runs on.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._efficiency = EFFICIENCY[target.kind]
        self._known: dict[DeviceGroups, _Group] = {}

    def seconds(self, op: CollectiveOp) -> float:
        """Time of one execution, once the wire is free.

        Args:
            op: The collective.

        Returns:
            Seconds; 0 for a group of one.

        Raises:
            ValueError: A device that the target does not have.
        """
        group = self._group(op.groups)
        if group.size < 2 or not op.wire_bytes:
            return 0.0
        if op.kind == "collective-permute":
            return self._permute(op, group)
        if "all-to-all" in op.kind:
            return self._all_to_all(op, group)
        return self._exchange(op, group)

    def wire(self, op: CollectiveOp) -> str:
        """What a collective occupies: two on one wire go one after the other.

        A link is one wire. On a torus, permutes that move data by different distances
        or in different directions leave by different ports, so the two rings of a
        windowed einsum run at the same time.

        Args:
            op: The collective.

        Returns:
            Name of the wire.
        """
        group = self._group(op.groups)
        if op.kind != "collective-permute" or not group.cut or group.far is not None:
            return (group.far or group.near).name
        some = op.pairs[:_ENOUGH_PAIRS]  # a pod's are many, and alike
        moves = Counter(target - source for source, target in some)
        return f"{group.near.name} {moves.most_common(1)[0][0]:+d}"

    def _exchange(self, op: CollectiveOp, group: _Group) -> float:
        """All-gather, reduce-scatter, all-reduce and broadcast.

        NCCL takes the faster of its protocols.
        """
        base = self._efficiency.collective_s
        steps, moving = self._ring(op, group)
        if self._target.kind != "gpu":
            return base + steps + moving
        small = LOW_LATENCY
        return min(
            base + steps + moving,
            small.base_s + small.latency * steps + moving / small.bandwidth,
        )

    def _ring(self, op: CollectiveOp, group: _Group) -> tuple[float, float]:
        """Seconds of all steps, and of all bytes."""
        whole = op.output_bytes if op.kind == "all-gather" else op.operand_bytes
        twice = op.kind == "all-reduce" or op.form == "all-reduce + slice"
        passes = 2 if twice else 1
        bandwidth = group.bandwidth * self._efficiency.link
        steps = passes * group.hops * group.near.latency_s
        if group.far is None:
            return steps, op.wire_bytes / bandwidth
        inside = (group.local - 1) / group.local
        outside = (group.domains - 1) / group.domains / group.local
        far = group.far.bandwidth * self._efficiency.link
        steps += passes * _rounds(group.domains) * group.far.latency_s
        return steps, passes * whole * max(inside / bandwidth, outside / far)

    def _all_to_all(self, op: CollectiveOp, group: _Group) -> float:
        """Each device sends every other one an n-th of what it has."""
        piece = op.operand_bytes / group.size
        inside, outside = group.local - 1, group.size - group.local
        peers = group.hops if group.cut else inside
        steps = peers * group.near.latency_s
        moving = inside * piece / (group.bandwidth * self._efficiency.link)
        if group.cut:
            # Half of the devices of a row send half of what they have over its middle:
            # of 8 in a ring, 8 / 2 x bytes / 2 over 2 ports each way, a byte for each
            # one of a device's (jax-ml.github.io/scaling-book/sharding).
            crossing = group.cut / 4 * piece * group.local
            moving = crossing / (group.near.port_bandwidth * self._efficiency.link)
        if group.far is not None:
            rounds = math.ceil(outside / _PEERS_AT_ONCE)
            steps += rounds * group.far.latency_s
            sent = outside * piece / (group.far.bandwidth * self._efficiency.link)
            moving = max(moving, sent)
        return self._efficiency.collective_s + steps + moving

    def _permute(self, op: CollectiveOp, group: _Group) -> float:
        link = group.far or group.near
        bandwidth = link.bandwidth
        if self._target.kind == "tpu" and group.far is None:
            bandwidth = link.port_bandwidth
        moving = op.wire_bytes / (bandwidth * self._efficiency.link)
        return self._efficiency.collective_s + link.latency_s + moving

    def _group(self, groups: DeviceGroups) -> _Group:
        found = self._known.get(groups)
        if found is None:
            found = self._known[groups] = self._widest(groups)
        return found

    def _widest(self, groups: DeviceGroups) -> _Group:
        """The first of the groups that cross most domains."""
        listed = groups.groups
        if groups.is_all:
            listed = (tuple(range(self._target.num_devices)),)
        per_domain = self._target.near_devices
        group = max(listed, key=lambda g: (len({d // per_domain for d in g}), len(g)))
        counts: dict[int, list[int]] = {}
        for device in group:
            counts.setdefault(device // per_domain, []).append(device)
        inside = max(counts.values(), key=len)
        crosses = len(counts) > 1
        hops, cut = self._hops(inside)
        return _Group(
            len(group),
            len(counts),
            hops,
            cut,
            self._target.bandwidth_of(inside),
            self._target.links[0],
            self._target.link_of(group) if crosses else None,
        )

    def _hops(self, inside: list[int]) -> tuple[int, float]:
        """Steps of a ring through the devices of one host or slice, and its cut."""
        if self._target.kind != "tpu":
            return len(inside) - 1, 0.0
        places = [self._target.place(device) for device in inside]
        hops, cut = 0, 0.0
        for dim, ring in enumerate(self._target.wraps):
            size = len({place[dim] for place in places})
            hops += size // 2 if ring else size - 1
            if size > 1:
                cut = max(cut, size / (2 if ring else 1))
        return max(hops, min(1, len(inside) - 1)), cut


def _rounds(domains: int) -> int:
    """Steps between hosts: NCCL takes a tree where a ring would be long."""
    return min(domains - 1, 2 * math.ceil(math.log2(domains)))
