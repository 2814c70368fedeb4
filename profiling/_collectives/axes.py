"""Which mesh axes a collective runs over, and what lies between its devices.

Groups become arrays of device ids, one row a group, so that those of a pod of thousands
are never listed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from profiling._hlo.device_groups import DeviceGroups
from spmd._meshes.mesh import Mesh

Pairs = Sequence[tuple[int, int]]


class MeshAxes:
    """Finds the axes of groups on one mesh; equal groups are looked at once.

    Args:
        mesh: Its device ids are those that groups and pairs hold.

    Example:
        >>> axes = MeshAxes(Mesh({"replica": 2, "fsdp": 4}))
        >>> axes.of_groups(DeviceGroups.parse("[4,2]<=[2,4]T(1,0)"))
        ('replica',)
        >>> axes.of_pairs([(0, 4), (4, 0)])
        ('replica',)
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        place = np.empty(mesh.size, np.int64)
        place[np.asarray(mesh.device_ids)] = np.arange(mesh.size)
        # Coordinate of each device id on each axis: [axis, device].
        self._coordinates = np.stack(np.unravel_index(place, mesh.shape))
        self._known: dict[DeviceGroups, tuple[str, ...]] = {}

    def of_groups(self, groups: DeviceGroups) -> tuple[str, ...]:
        """Axes along which the devices of each group differ.

        Args:
            groups: Device groups.

        Returns:
            Names, outermost first; empty where the groups are not exactly those of some
            axes: pieces of one, or of different sizes.
        """
        if groups not in self._known:
            self._known[groups] = self._of_groups(groups)
        return self._known[groups]

    def of_pairs(self, pairs: Pairs) -> tuple[str, ...]:
        """Axes along which a permute moves something.

        Args:
            pairs: Source and target.

        Returns:
            Names, outermost first; empty where nothing moves.
        """
        ids = np.asarray(pairs, np.int64).reshape(-1, 2)
        if not self._has(ids):
            return ()
        there = self._coordinates[:, ids]  # [axis, pair, 2]
        return self._names((there[..., 0] != there[..., 1]).any(axis=1))

    def _of_groups(self, groups: DeviceGroups) -> tuple[str, ...]:
        if groups.is_all:
            groups = DeviceGroups((), (self._mesh.size,), (), self._mesh.size)
        found = rows(groups)
        if len(found) != 1 or not self._has(found[0]):
            return ()
        there = self._coordinates[:, found[0]]  # [axis, group, member]
        differs = (there != there[..., :1]).any(axis=(1, 2))
        # 4 devices that differ along axes of 2 x 2 are all of these; of 2 x 4 a part.
        ways = math.prod(n for n, d in zip(self._mesh.shape, differs, strict=True) if d)
        members = np.sort(found[0], axis=1)
        repeats = bool((members[:, 1:] == members[:, :-1]).any())
        if ways != found[0].shape[1] or repeats:
            return ()
        return self._names(differs)

    def _has(self, ids: np.ndarray) -> bool:
        return bool(ids.size) and 0 <= ids.min() and ids.max() < self._mesh.size

    def _names(self, chosen: np.ndarray) -> tuple[str, ...]:
        return tuple(
            name for name, c in zip(self._mesh.axis_names, chosen, strict=True) if c
        )


def rows(groups: DeviceGroups) -> tuple[np.ndarray, ...]:
    """Groups as arrays.

    Args:
        groups: Device groups.

    Returns:
        Device ids [group, member], an array for each size of a group there is.

    Example:
        >>> [a.tolist() for a in rows(DeviceGroups.parse("{{0,2},{1,3},{4}}"))]
        [[[0, 2], [1, 3]], [[4]]]
    """
    if groups.reshape_dims:
        ids = np.arange(groups.num_devices).reshape(groups.reshape_dims)
        if groups.transpose_perm:
            ids = ids.transpose(groups.transpose_perm)
        return (ids.reshape(-1, groups.group_size),)
    by_size: dict[int, list[tuple[int, ...]]] = {}
    for group in groups.listed:
        if group:
            by_size.setdefault(len(group), []).append(group)
    return tuple(np.asarray(found, np.int64) for found in by_size.values())


def crosses(groups: DeviceGroups, block: int) -> bool:
    """Whether a group has devices of several blocks of consecutive ids.

    Args:
        groups: Device groups.
        block: Devices of a block: of a host, a slice or an NVLink domain.

    Returns:
        True if any does.

    Example:
        >>> crosses(DeviceGroups.parse("[2,2]<=[4]"), 2)
        False
        >>> crosses(DeviceGroups.parse("[2,2]<=[2,2]T(1,0)"), 2)
        True
    """
    return any(
        bool((found // block != found[:, :1] // block).any()) for found in rows(groups)
    )
