"""XLA's own form of a sharding, to and from a mesh and a spec.

`HloSharding` holds what XLA calls a tile assignment, either listed device by device
or in the compact iota form (V2): "count up over `reshape_dims`, then transpose". The
compact form stays small on a mesh of thousands of devices.
Source of the text grammar: openxla.org/xla and XLA's `hlo_sharding.h`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, SpecEntry, entry_axes, num_shards

Form = Literal["iota", "tiles"]


@dataclass(frozen=True, slots=True)
class HloSharding:
    """One tensor's sharding as XLA writes it.

    Attributes:
        tile_shape: Number of tiles per dim, then the replication dim if
            `replicate_last`. Empty for a replicated tensor.
        reshape_dims: Compact form: shape the device count-up is given. Empty when
            listed.
        transpose_perm: Compact form: permutation of `reshape_dims`. Empty when
            identity.
        devices: Listed form: device ids, row-major over `tile_shape`.
        replicate_last: The last dim of `tile_shape` counts replicas, not tiles.

    Raises:
        ValueError: Sizes that do not multiply up, or a list that repeats a device.
    """

    tile_shape: tuple[int, ...] = ()
    reshape_dims: tuple[int, ...] = ()
    transpose_perm: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    replicate_last: bool = False

    def __post_init__(self) -> None:
        if self.is_replicated:
            return
        total = math.prod(self.tile_shape)
        given = math.prod(self.reshape_dims) if self.reshape_dims else len(self.devices)
        if total != given:
            raise ValueError(
                f"sharding: tile shape {self.tile_shape} needs {total} devices, the "
                f"assignment has {given}"
            )
        if self.devices and sorted(self.devices) != list(range(total)):
            raise ValueError(f"sharding: devices {self.devices} are not 0..{total - 1}")
        if self.transpose_perm and sorted(self.transpose_perm) != list(
            range(len(self.reshape_dims))
        ):
            raise ValueError(
                f"sharding: T{self.transpose_perm} is no permutation of the "
                f"{len(self.reshape_dims)} dims {self.reshape_dims}"
            )

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole tensor."""
        return not self.tile_shape

    @property
    def num_devices(self) -> int:
        """Number of devices in the assignment; 0 for a replicated tensor."""
        return math.prod(self.tile_shape) if self.tile_shape else 0

    def tiles(self) -> np.ndarray:
        """Device ids as an array of `tile_shape`.

        Returns:
            The tile assignment; an empty array for a replicated tensor.
        """
        if self.is_replicated:
            return np.empty((0,), dtype=np.int64)
        if self.devices:
            return np.asarray(self.devices, dtype=np.int64).reshape(self.tile_shape)
        ids = np.arange(self.num_devices).reshape(self.reshape_dims)
        if self.transpose_perm:
            ids = ids.transpose(self.transpose_perm)
        return ids.reshape(self.tile_shape)

    def __str__(self) -> str:
        """XLA's text, e.g. ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}``."""
        if self.is_replicated:
            return "{replicated}"
        text = f"devices=[{_commas(self.tile_shape)}]"
        if self.devices:
            text += _commas(self.devices)
        else:
            text += f"<=[{_commas(self.reshape_dims)}]"
            if self.transpose_perm:
                text += f"T({_commas(self.transpose_perm)})"
        return (
            "{"
            + text
            + (" last_tile_dim_replicate" if self.replicate_last else "")
            + "}"
        )

    @classmethod
    def parse(cls, text: str) -> HloSharding:
        """Read XLA's text.

        Args:
            text: ``{replicated}``, ``{devices=[8,1]0,1,...}`` or
                ``{devices=[8,1]<=[8]}``.

        Returns:
            The sharding.

        Raises:
            ValueError: Text that is none of these; a caret shows where it stops.

        Example:
            >>> HloSharding.parse("{devices=[4,2]<=[2,4]T(1,0)}").tiles().tolist()
            [[0, 4], [1, 5], [2, 6], [3, 7]]
        """
        body = text.strip()
        if body in ("{replicated}", "replicated", ""):
            return cls()
        match = _TEXT.match(body)
        if match is None or match.end() != len(body):
            stop = match.end() if match else _stop(body)
            raise ValueError(
                f"not a sharding that splits a tensor over a mesh:\n  {body}\n  "
                f"{' ' * stop}^"
            )
        return cls(
            tile_shape=_ints(match["tiles"]),
            reshape_dims=_ints(match["reshape"]),
            transpose_perm=_ints(match["perm"]),
            devices=_ints(match["devices"]),
            replicate_last=match["last"] is not None,
        )


_TEXT = re.compile(
    r"\{?devices=\[(?P<tiles>\d+(?:,\d+)*)\]"
    r"(?:<=\[(?P<reshape>\d+(?:,\d+)*)\](?:T\((?P<perm>\d+(?:,\d+)*)\))?"
    r"|(?P<devices>\d+(?:,\d+)*))"
    r"(?P<last> last_tile_dim_replicate)?\}?"
)


def _stop(text: str) -> int:
    prefix = "{devices=["
    return next((i for i, c in enumerate(prefix) if text[i : i + 1] != c), len(prefix))


def _ints(text: str | None) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split(",")) if text else ()


def _commas(values: Sequence[int]) -> str:
    return ",".join(str(v) for v in values)


def to_hlo(mesh: Mesh, spec: Spec, *, form: Form = "iota") -> HloSharding:
    """XLA's sharding of a tensor with this spec.

    Args:
        mesh: The mesh.
        spec: A normalised spec.
        form: ``"iota"`` for the compact form (used where the mesh counts up row-major;
            another device order is always listed), ``"tiles"`` for the list.

    Returns:
        The sharding; replicated where no axis of more than one device is used.

    Example:
        >>> str(to_hlo(Mesh({"fsdp": 4, "tensor": 2}), ("tensor", None)))
        '{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}'
    """
    ways = num_shards(mesh, spec)
    if math.prod(ways) == 1:
        return HloSharding()
    split = [mesh.axis_index(a) for e in spec for a in entry_axes(e)]
    rest = [i for i in range(mesh.ndim) if i not in split]
    num_replicas = mesh.size // math.prod(ways)
    tile_shape = ways + ((num_replicas,) if num_replicas > 1 else ())
    if form == "iota" and mesh.is_iota:
        dims, perm = _canonical(mesh.shape, split + rest)
        return HloSharding(tile_shape, dims, perm, replicate_last=num_replicas > 1)
    ids = mesh.devices.transpose(split + rest).reshape(-1, num_replicas)
    return HloSharding(
        tile_shape,
        devices=tuple(np.sort(ids, axis=1).reshape(-1).tolist()),  # as XLA sorts copies
        replicate_last=num_replicas > 1,
    )


def _canonical(
    dims: Sequence[int], perm: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Drop dims of size 1 and merge dims that stay side by side, as XLA does.

    (2, 4, 2) transposed by (2, 0, 1): dims 0 and 1 stay neighbours in order, so the
    same assignment is (8, 2) transposed by (1, 0).
    """
    order = [p for p in perm if dims[p] > 1]
    runs: list[list[int]] = []
    for p in order:
        gap = range(runs[-1][-1] + 1, p) if runs else ()
        follows = bool(runs) and p > runs[-1][-1] and all(dims[i] == 1 for i in gap)
        if follows:
            runs[-1].append(p)
        else:
            runs.append([p])
    ranked = sorted(runs, key=lambda run: run[0])
    merged = tuple(math.prod(dims[i] for i in run) for run in ranked)
    new_perm = tuple(ranked.index(run) for run in runs)
    return merged, () if new_perm == tuple(range(len(runs))) else new_perm


def from_hlo(sharding: HloSharding, mesh: Mesh, *, ndim: int | None = None) -> Spec:
    """The spec that gives this sharding on a mesh.

    Axes of size 1 leave no trace in XLA's form, so they never come back.

    Args:
        sharding: XLA's sharding, compact or listed.
        mesh: The mesh to express it on.
        ndim: Number of dims; needed for a replicated tensor only.

    Returns:
        A normalised spec.

    Raises:
        ValueError: A sharding no spec on this mesh gives, or one of another size.

    Example:
        >>> from_hlo(
        ...     HloSharding.parse(
        ...         "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"
        ...     ),
        ...     Mesh({"fsdp": 4, "tensor": 2}),
        ... )
        ('tensor', None)
    """
    if sharding.is_replicated:
        if ndim is None:
            raise ValueError("from_hlo: a replicated sharding needs ndim=...")
        return (None,) * ndim
    if sharding.num_devices != mesh.size:
        raise ValueError(
            f"sharding {sharding} is over {sharding.num_devices} devices, the mesh "
            f"{mesh!r} has {mesh.size}"
        )
    num_dims = len(sharding.tile_shape) - sharding.replicate_last
    if math.prod(sharding.tile_shape[:num_dims]) == 1:
        return (None,) * num_dims  # one tile, however its copies are ordered
    spec = _axes_by_dim(sharding, mesh, num_dims)
    if spec is None or not _same_tiles(to_hlo(mesh, spec, form="tiles"), sharding):
        raise ValueError(f"no spec on {mesh!r} gives the sharding {sharding}")
    return spec


def _axes_by_dim(sharding: HloSharding, mesh: Mesh, num_dims: int) -> Spec | None:
    """Step along each axis from the first device and see which tile index moves."""
    tiles = sharding.tiles()
    where = np.empty((mesh.size, tiles.ndim), dtype=np.int64)
    where[tiles.reshape(-1)] = np.stack(
        np.unravel_index(np.arange(mesh.size), tiles.shape), axis=1
    )
    devices = mesh.devices
    origin = where[devices[(0,) * mesh.ndim]]
    found: list[list[tuple[int, str]]] = [[] for _ in range(num_dims)]
    for i, axis in enumerate(mesh.axis_names):
        if mesh.shape[i] == 1:
            continue
        index = [0] * mesh.ndim
        index[i] = 1
        step = where[devices[tuple(index)]] - origin
        moved = [d for d in np.nonzero(step)[0] if d < num_dims]
        if len(moved) > 1:
            return None
        if moved:
            found[moved[0]].append((int(step[moved[0]]), axis))
    entries: list[SpecEntry] = []
    for steps in found:
        axes = tuple(axis for _, axis in sorted(steps, reverse=True))
        entries.append(None if not axes else axes[0] if len(axes) == 1 else axes)
    return tuple(entries)


def _same_tiles(ours: HloSharding, given: HloSharding) -> bool:
    """Same tile for each device; the order of replicas inside a tile is free."""
    if (
        ours.tile_shape != given.tile_shape
        or ours.replicate_last != given.replicate_last
    ):
        return False
    a, b = ours.tiles(), given.tiles()
    if ours.replicate_last:
        a, b = np.sort(a, axis=-1), np.sort(b, axis=-1)
    return bool(np.array_equal(a, b))
