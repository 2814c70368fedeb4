"""Which devices a collective's numbers mean.

XLA's groups hold replicas, partitions or devices, depending on `channel_id` and
`use_global_device_ids`; here they always become devices, counted replica by replica:
device = replica * num_partitions + partition. Source: XLA's `collective_ops_utils.h`
(CollectiveOpGroupMode).
"""

from __future__ import annotations

from collections.abc import Iterable

from profiling._hlo.device_groups import DeviceGroups
from profiling._hlo.module import Attributes, Module

_REDUCING = ("all-reduce", "all-gather", "reduce-scatter")


def participants(kind: str, attributes: Attributes, module: Module) -> DeviceGroups:
    """Groups of devices that talk to each other.

    Args:
        kind: Opcode without ``-start``.
        attributes: Of the collective.
        module: Where it is.

    Returns:
        Device ids; of a permute, devices that a chain of its pairs connects.
    """
    replicas, partitions = module.num_replicas, module.num_partitions
    if kind == "collective-permute":
        return connected(attributes.pairs)
    groups = attributes.groups
    everyone = replicas * partitions
    if attributes.global_ids or replicas == 1 == partitions:
        return groups or _all(everyone)
    if not attributes.channel:
        return _cross_replica(groups, replicas, partitions)
    if kind in _REDUCING:
        return _cross_replica_and_partition(groups, replicas, partitions)
    if groups is None:
        groups = _all(partitions)
    if replicas == 1:
        return groups
    return DeviceGroups(
        tuple(
            tuple(r * partitions + p for p in group)
            for r in range(replicas)
            for group in groups.groups
        )
    )


def connected(pairs: Iterable[tuple[int, int]]) -> DeviceGroups:
    """Devices that a chain of pairs connects.

    Args:
        pairs: Source and target.

    Returns:
        Groups of at least two, each sorted.

    Example:
        >>> connected([(0, 1), (1, 0), (2, 3), (4, 4)])
        DeviceGroups({{0,1},{2,3}})
    """
    leader: dict[int, int] = {}

    def find(device: int) -> int:
        while leader.setdefault(device, device) != device:
            leader[device] = leader[leader[device]]
            device = leader[device]
        return device

    for source, target in pairs:
        leader[find(source)] = find(target)
    found: dict[int, list[int]] = {}
    for device in sorted(leader):
        found.setdefault(find(device), []).append(device)
    return DeviceGroups(tuple(tuple(g) for g in found.values() if len(g) > 1))


def _all(count: int) -> DeviceGroups:
    return DeviceGroups((), (count,), (), count)


def _cross_replica(
    groups: DeviceGroups | None, replicas: int, partitions: int
) -> DeviceGroups:
    """Groups of replicas; the partitions do it side by side."""
    if groups is None:
        groups = _all(replicas)
    if partitions == 1 or _exceeds(groups, replicas):
        return groups
    return DeviceGroups(
        tuple(
            tuple(r * partitions + p for r in group)
            for group in groups.groups
            for p in range(partitions)
        )
    )


def _cross_replica_and_partition(
    groups: DeviceGroups | None, replicas: int, partitions: int
) -> DeviceGroups:
    """Groups of replicas, with all their partitions."""
    if groups is None:
        return _all(replicas * partitions)
    if partitions == 1 or _exceeds(groups, replicas):
        return groups
    return DeviceGroups(
        tuple(
            tuple(r * partitions + p for r in group for p in range(partitions))
            for group in groups.groups
        )
    )


def _exceeds(groups: DeviceGroups, replicas: int) -> bool:
    """Whether the numbers cannot be replicas, as a proto need not say how many."""
    return groups.num_devices > replicas
