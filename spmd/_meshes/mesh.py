"""`Mesh`: named axes over devices, and which link each axis crosses.

Pure arithmetic: a mesh may be larger than the machine it is built on, so nothing
here opens a device, except that `-1` asks the runtime for its device count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DATA_AXES: tuple[str, ...] = (
    "dcn",
    "replica",
    "data",
    "dp_replicate",
    "dp_shard",
    "fsdp",
)
"""Axis names that split the batch by convention, outermost first."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Mesh:
    """Devices arranged along named axes, row-major, outermost axis first.

    Three forms build one:

    * ``Mesh({"replica": 2, "fsdp": -1})``: sizes by axis name; one may be ``-1`` and
      takes what is left of ``num_devices`` (default: the devices of this machine).
    * ``Mesh.hybrid(ici={"fsdp": 4}, dcn={"replica": 2})``: `dcn` axes outermost.
    * ``Mesh(device_ids, mesh_shape, axis_names)``: torch_xla's own signature.

    Args:
        axes: Sizes by axis name, or the flat device ids in row-major order.
        shape: Axis sizes; only with device ids. Default: the shape of the ids.
        axis_names: Axis names; only with device ids.
        num_devices: What ``-1`` fills up to.
        dcn_axes: Axes whose neighbours sit on different hosts or slices.

    Raises:
        TypeError: An axis size, name or device id of the wrong type, or both forms
            at once.
        ValueError: Sizes that do not multiply to the number of devices, repeated
            names or device ids, more than one ``-1``.

    Example:
        >>> mesh = Mesh({"replica": 2, "fsdp": 4})
        >>> mesh
        Mesh(replica=2, fsdp=4)
        >>> mesh.axis_groups("replica")
        ((0, 4), (1, 5), (2, 6), (3, 7))
    """

    axis_names: tuple[str, ...]
    shape: tuple[int, ...]
    device_ids: tuple[int, ...]
    dcn_axes: tuple[str, ...]

    def __init__(
        self,
        axes: Mapping[str, int] | Sequence[int] | np.ndarray,
        shape: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
        *,
        num_devices: int | None = None,
        dcn_axes: str | Iterable[str] = (),
    ) -> None:
        if isinstance(axes, Mapping):
            if shape is not None or axis_names is not None:
                raise TypeError(
                    "Mesh(...): give either sizes by axis name or "
                    "(device_ids, mesh_shape, axis_names), not both"
                )
            names = tuple(axes)
            sizes = _fill(names, tuple(axes.values()), num_devices)
            device_ids = tuple(range(math.prod(sizes)))
        else:
            names, sizes, device_ids = _from_ids(axes, shape, axis_names)
        if num_devices is not None and math.prod(sizes) != num_devices:
            raise ValueError(
                f"Mesh: axes {_axes_text(names, sizes)} make {math.prod(sizes)} "
                f"devices, num_devices={num_devices}; change a size or use -1 for one"
            )
        _check_devices(names, sizes, device_ids)
        dcn = _as_tuple(dcn_axes)
        for axis in dcn:
            if axis not in names:
                raise ValueError(f"Mesh: dcn axis {axis!r} is none of the axes {names}")
        object.__setattr__(self, "axis_names", names)
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "device_ids", device_ids)
        object.__setattr__(self, "dcn_axes", dcn)

    @classmethod
    def hybrid(
        cls,
        *,
        ici: Mapping[str, int],
        dcn: Mapping[str, int],
        num_devices: int | None = None,
    ) -> Mesh:
        """Build a mesh over several hosts or slices, `dcn` axes outermost.

        Args:
            ici: Sizes of the axes inside a host or slice (fast link).
            dcn: Sizes of the axes between hosts or slices (slow link).
            num_devices: What ``-1`` fills up to.

        Returns:
            A mesh whose first axes are those of `dcn`.

        Raises:
            ValueError: The same axis in both.

        Example:
            >>> Mesh.hybrid(ici={"fsdp": 4}, dcn={"replica": 2})
            Mesh(replica=2[dcn], fsdp=4)
        """
        both = sorted(set(ici) & set(dcn))
        if both:
            raise ValueError(
                f"Mesh.hybrid: axis {both[0]!r} is in both ici and dcn; name the outer "
                f"one differently (e.g. 'replica') and split a dim over "
                f"('replica', {both[0]!r}) to use both"
            )
        return cls({**dcn, **ici}, num_devices=num_devices, dcn_axes=tuple(dcn))

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.device_ids)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def sizes(self) -> dict[str, int]:
        """Axis sizes by name, outermost first."""
        return dict(zip(self.axis_names, self.shape, strict=True))

    @property
    def devices(self) -> np.ndarray:
        """Device ids as an array of the mesh's shape."""
        return np.asarray(self.device_ids, dtype=np.int64).reshape(self.shape)

    @property
    def is_iota(self) -> bool:
        """Whether device ids count up row-major, as in almost every mesh."""
        return self.device_ids == tuple(range(self.size))

    @property
    def data_axes(self) -> tuple[str, ...]:
        """Axes of this mesh that split the batch by convention (`DATA_AXES`)."""
        return tuple(a for a in self.axis_names if a in DATA_AXES)

    def axis_size(self, axes: str | Iterable[str]) -> int:
        """Number of ways a dim is split by `axes`.

        Args:
            axes: An axis name or several.

        Returns:
            The product of their sizes.

        Raises:
            ValueError: An axis this mesh does not have.
        """
        return math.prod(self.shape[self.axis_index(a)] for a in _as_tuple(axes))

    def axis_index(self, axis: str) -> int:
        """Position of an axis.

        Args:
            axis: Its name.

        Returns:
            Index into `shape` and `axis_names`.

        Raises:
            ValueError: An axis this mesh does not have.
        """
        if axis not in self.axis_names:
            raise ValueError(
                f"mesh axis {axis!r} does not exist; this mesh has "
                f"{_axes_text(self.axis_names, self.shape)}"
            )
        return self.axis_names.index(axis)

    def axis_groups(self, axes: str | Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Device groups that a collective over `axes` uses.

        Args:
            axes: An axis name or several, major to minor.

        Returns:
            One tuple of device ids a group; every device is in exactly one.

        Raises:
            ValueError: An axis this mesh does not have, or one given twice.

        Example:
            >>> Mesh({"fsdp": 2, "tensor": 2}).axis_groups("tensor")
            ((0, 1), (2, 3))
        """
        names = _as_tuple(axes)
        if len(set(names)) != len(names):
            raise ValueError(f"axis_groups: an axis is given twice in {names}")
        moved = [self.axis_index(a) for a in names]
        rest = [i for i in range(self.ndim) if i not in moved]
        grouped = self.devices.transpose(rest + moved).reshape(
            -1, self.axis_size(names)
        )
        return tuple(tuple(int(d) for d in row) for row in grouped)

    def crosses_dcn(self, axes: str | Iterable[str]) -> bool:
        """Whether a collective over `axes` leaves the host or slice.

        Args:
            axes: An axis name or several.

        Returns:
            True where one of them is a `dcn` axis of more than one device.

        Raises:
            ValueError: An axis this mesh does not have.
        """
        return any(
            a in self.dcn_axes and self.axis_size(a) > 1 for a in _as_tuple(axes)
        )

    def coordinates(self, device: int) -> dict[str, int]:
        """Where a device sits on each axis.

        Args:
            device: A device id.

        Returns:
            Coordinate by axis name.

        Raises:
            ValueError: A device that is not in the mesh.
        """
        if device not in self.device_ids:
            raise ValueError(f"device {device} is not in {self!r}")
        where = np.unravel_index(self.device_ids.index(device), self.shape)
        return {a: int(i) for a, i in zip(self.axis_names, where, strict=True)}

    def __repr__(self) -> str:
        axes = ", ".join(
            f"{a}={s}{'[dcn]' if a in self.dcn_axes else ''}"
            for a, s in zip(self.axis_names, self.shape, strict=True)
        )
        return f"Mesh({axes}{'' if self.is_iota else ', device_ids=...'})"


def _as_tuple(axes: str | Iterable[str]) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _axes_text(names: Sequence[str], sizes: Sequence[int]) -> str:
    return "{" + ", ".join(f"{n}: {s}" for n, s in zip(names, sizes, strict=True)) + "}"


def _from_ids(
    axes: Any, shape: Sequence[int] | None, axis_names: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Read torch_xla's signature: names, sizes and device ids."""
    ids = np.asarray(axes)
    if ids.ndim == 0 or (ids.size and ids.dtype.kind not in "iu"):
        raise TypeError(
            f"Mesh({axes!r}): give sizes by axis name, e.g. Mesh({{'fsdp': 8}}), or "
            f"(device_ids, mesh_shape, axis_names) with integer device ids"
        )
    sizes = ids.shape if shape is None else tuple(shape)
    names = tuple(axis_names or (f"axis{i}" for i in range(len(sizes))))
    if len(names) != len(sizes):
        raise ValueError(
            f"Mesh: {len(names)} axis names {names} for a shape of "
            f"{len(sizes)} axes {sizes}; give one name an axis"
        )
    return names, _fill(names, sizes, ids.size), tuple(ids.reshape(-1).tolist())


def _fill(
    names: tuple[str, ...], sizes: tuple[Any, ...], num_devices: int | None
) -> tuple[int, ...]:
    """Check the sizes and replace one -1 by what is left."""
    for name, size in zip(names, sizes, strict=True):
        if isinstance(size, bool) or not isinstance(size, int | np.integer):
            raise TypeError(
                f"Mesh: axis {name!r} has size {size!r}; an int is needed (or -1)"
            )
        if size < 1 and size != -1:
            raise ValueError(
                f"Mesh: axis {name!r} has size {size}; it must be positive, or -1 to "
                f"take the devices that are left"
            )
    if sizes.count(-1) > 1:
        raise ValueError(
            f"Mesh: only one axis may be -1, got {_axes_text(names, sizes)}"
        )
    if -1 not in sizes:
        return tuple(int(s) for s in sizes)
    if num_devices is None:
        from spmd._runtime import num_devices as count_devices

        num_devices = count_devices()
    known = math.prod(s for s in sizes if s != -1)
    if num_devices < known or num_devices % known:
        raise ValueError(
            f"Mesh: {_axes_text(names, sizes)}: the fixed axes make {known}, which "
            f"does not divide {num_devices} devices"
        )
    return tuple(num_devices // known if s == -1 else int(s) for s in sizes)


def _check_devices(
    names: tuple[str, ...], sizes: tuple[int, ...], device_ids: tuple[int, ...]
) -> None:
    if not names:
        raise ValueError("Mesh: at least one axis is needed, e.g. Mesh({'fsdp': -1})")
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"Mesh: axis names are non-empty strings, got {name!r}")
    if len(set(names)) != len(names):
        raise ValueError(f"Mesh: an axis name is used twice in {names}")
    if math.prod(sizes) != len(device_ids):
        raise ValueError(
            f"Mesh: axes {_axes_text(names, sizes)} make {math.prod(sizes)} devices, "
            f"but {len(device_ids)} device ids were given"
        )
    if sorted(device_ids) != list(range(len(device_ids))):
        raise ValueError(
            f"Mesh: device ids must be each of 0..{len(device_ids) - 1} once, got "
            f"{device_ids[:16]}{'...' if len(device_ids) > 16 else ''}"
        )
