"""`DeviceGroups`: which devices take part in a collective together.

XLA writes them in three ways: listed (``{{0,1},{2,3}}``), counted up and transposed
(``[4,2]<=[2,4]T(1,0)``), or as axes of a mesh (``mesh['a'=4,'b'=2] {'b'}``). The
compact ways stay compact here: a pod's groups are not listed until somebody asks.
Source: XLA's `hlo/ir/replica_group.h`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, repr=False)
class DeviceGroups:
    """Groups of device ids.

    Attributes:
        listed: The groups one by one; empty when compact, or when XLA says none, which
            means one group of all devices.
        reshape_dims: Compact: the shape that the count-up 0..n-1 is given.
        transpose_perm: Compact: how its dims are then permuted; empty for not at all.
        group_size: Compact: devices in a group.

    Raises:
        ValueError: A compact form whose sizes do not multiply up.

    Example:
        >>> DeviceGroups.parse("[2,4]<=[4,2]T(1,0)").groups
        ((0, 2, 4, 6), (1, 3, 5, 7))
    """

    listed: tuple[tuple[int, ...], ...] = ()
    reshape_dims: tuple[int, ...] = ()
    transpose_perm: tuple[int, ...] = ()
    group_size: int = 0

    def __post_init__(self) -> None:
        if not self.reshape_dims:
            return
        total = math.prod(self.reshape_dims)
        if self.group_size < 1 or total < 1 or total % self.group_size:
            raise ValueError(
                f"device groups: {total} devices (from {list(self.reshape_dims)}) do "
                f"not make groups of {self.group_size}"
            )
        perm = self.transpose_perm
        if perm and sorted(perm) != list(range(len(self.reshape_dims))):
            raise ValueError(
                f"device groups: T{perm} is no permutation of the "
                f"{len(self.reshape_dims)} dims {self.reshape_dims}"
            )

    @property
    def is_all(self) -> bool:
        """Whether XLA says no groups: one group of every device."""
        return not self.listed and not self.reshape_dims

    @property
    def num_devices(self) -> int:
        """Devices in all groups; 0 where XLA says none."""
        if self.reshape_dims:
            return math.prod(self.reshape_dims)
        return sum(map(len, self.listed))

    @property
    def largest_group(self) -> int:
        """Devices in the largest group; 0 where XLA says none."""
        return self.group_size or max(map(len, self.listed), default=0)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups one by one, in XLA's order."""
        if not self.reshape_dims:
            return self.listed
        ids = np.arange(self.num_devices).reshape(self.reshape_dims)
        if self.transpose_perm:
            ids = ids.transpose(self.transpose_perm)
        return tuple(map(tuple, ids.reshape(-1, self.group_size).tolist()))

    def __str__(self) -> str:
        """XLA's text."""
        if not self.reshape_dims:
            return "{" + ",".join(f"{{{_commas(g)}}}" for g in self.listed) + "}"
        count = self.num_devices // self.group_size
        text = f"[{count},{self.group_size}]<=[{_commas(self.reshape_dims)}]"
        return text + (
            f"T({_commas(self.transpose_perm)})" if self.transpose_perm else ""
        )

    def __repr__(self) -> str:
        return f"DeviceGroups({self})"

    @classmethod
    def parse(cls, text: str) -> DeviceGroups:
        """Read XLA's text, in any of the three ways.

        Args:
            text: What stands after ``replica_groups=``.

        Returns:
            The groups.

        Raises:
            ValueError: Text that is none of them.
        """
        text = text.strip()
        if match := _IOTA.fullmatch(text):
            return iota(*map(_ints, match.groups()))
        if match := _MESH.fullmatch(text):
            return _from_mesh_text(match)
        if _LISTED.fullmatch(text):
            return cls(tuple(_ints(g) for g in _GROUP.findall(text[1:-1])))
        raise ValueError(
            f"no device groups: {text[:200]!r}; XLA writes {{{{0,1}},{{2,3}}}}, "
            f"[2,2]<=[4] or mesh['a'=2,'b'=2] {{'b'}}"
        )


_NUMBERS = r"\s*\d+(?:\s*,\s*\d+)*\s*"
_IOTA = re.compile(rf"\[({_NUMBERS})\]<=\[({_NUMBERS})\](?:T\(({_NUMBERS})\))?")
_GROUP = re.compile(r"\{([^{}]*)\}")
_LISTED = re.compile(
    rf"\{{(?:\s*\{{(?:{_NUMBERS})?\}}\s*(?:,\s*\{{(?:{_NUMBERS})?\}}\s*)*)?\}}"
)
_AXIS = r"'[^']*'(?::\(\d+\)\d+)?"
_MESH = re.compile(
    r"mesh\[(?P<axes>(?:'[^']*'=\d+,? ?)*)\]"
    rf"(?:,? ?device_ids=\((?P<ids>{_NUMBERS}|\[{_NUMBERS}\](?:T\({_NUMBERS}\))?)\))?"
    rf" ?\{{(?P<chosen>(?:{_AXIS}(?:, ?)?)*)\}}"
)


def iota(
    counts: tuple[int, ...], dims: tuple[int, ...], perm: tuple[int, ...] = ()
) -> DeviceGroups:
    """Groups in the count-up form.

    Args:
        counts: Number of groups, and devices in each.
        dims: Shape of the count-up.
        perm: How it is permuted.

    Returns:
        The groups.

    Raises:
        ValueError: Sizes that do not multiply up.
    """
    if len(counts) != 2 or math.prod(counts) != math.prod(dims):
        raise ValueError(
            f"device groups: [{_commas(counts)}] groups and devices do not make the "
            f"{math.prod(dims)} devices of [{_commas(dims)}]"
        )
    perm = () if perm == tuple(range(len(perm))) else perm
    return DeviceGroups((), dims, perm, counts[1])


def from_mesh(
    axes: Sequence[tuple[str, int]],
    chosen: Sequence[tuple[int, int, int]],
    *,
    device_ids: Sequence[int] = (),
    reshape_dims: Sequence[int] = (),
    transpose_perm: Sequence[int] = (),
) -> DeviceGroups:
    """Groups that run along axes of a mesh.

    Args:
        axes: Name and size of each mesh axis, outermost first.
        chosen: Axes of the group, outermost first: index, and for a piece of an axis
            the size of what lies outside of it and its own size (else 0 and 0).
        device_ids: The mesh's devices where they do not count up.
        reshape_dims: The mesh's own count-up, where it has one.
        transpose_perm: And its permutation.

    Returns:
        The groups.

    Raises:
        ValueError: An axis that the mesh does not have, or a piece that does not fit.
    """
    dims: list[int] = []
    where: list[list[int]] = []  # for each mesh axis, its dims in `dims`
    picked: dict[tuple[int, int], int] = {}
    for i, (name, size) in enumerate(axes):
        pieces = sorted((pre, n) for index, pre, n in chosen if index == i and n)
        where.append([])
        left = size
        for pre, n in pieces:
            outer = pre // (size // left) if left else 0
            if outer < 1 or left % (outer * n):
                raise ValueError(f"device groups: no piece ({pre}){n} of axis {name!r}")
            dims += [outer, n]
            picked[i, pre] = len(dims) - 1
            left //= outer * n
        dims.append(left)
        where[i] = [len(dims) - 1]
    last = []
    for index, pre, n in chosen:
        if not 0 <= index < len(axes):
            raise ValueError(f"device groups: no axis {index} in a mesh of {len(axes)}")
        last += [picked[index, pre]] if n else where[index]
    perm = [i for i in range(len(dims)) if i not in last] + last
    size = math.prod(dims[i] for i in last)
    if not device_ids and not reshape_dims:
        kept = [i for i, n in enumerate(dims) if n != 1] or [0]
        order = tuple(kept.index(i) for i in perm if i in kept)
        counts = (math.prod(dims) // max(size, 1), size)
        return iota(counts, tuple(dims[i] for i in kept), order)
    ids = np.asarray(device_ids or range(math.prod(reshape_dims)))
    if transpose_perm:
        ids = ids.reshape(reshape_dims).transpose(transpose_perm)
    if ids.size != math.prod(dims):
        raise ValueError(f"device groups: {ids.size} devices for a mesh of {dims}")
    groups = ids.reshape(dims).transpose(perm).reshape(-1, size)
    return DeviceGroups(tuple(map(tuple, groups.tolist())))


def _from_mesh_text(match: re.Match[str]) -> DeviceGroups:
    found = re.findall(r"'([^']*)'=(\d+)", match["axes"])
    axes = [(name, int(size)) for name, size in found]
    index = {name: i for i, (name, _) in enumerate(axes)}
    chosen = []
    for name, pre, size in re.findall(
        r"'([^']*)'(?::\((\d+)\)(\d+))?", match["chosen"]
    ):
        if name not in index:
            raise ValueError(
                f"device groups: no axis {name!r} in the mesh, which has "
                f"{', '.join(map(repr, index))}"
            )
        chosen.append((index[name], int(pre or 0), int(size or 0)))
    ids = match["ids"] or ""
    if not ids.startswith("["):
        return from_mesh(axes, chosen, device_ids=_ints(ids))
    dims, _, perm = ids[1:].rstrip(")").partition("]T(")
    return from_mesh(
        axes,
        chosen,
        reshape_dims=_ints(dims.rstrip("]")),
        transpose_perm=_ints(perm),
    )


def _ints(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text and text.strip() else ()


def _commas(values: Sequence[int]) -> str:
    return ",".join(map(str, values))
