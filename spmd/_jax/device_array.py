"""`DeviceArray`: one value over jax's devices, put there and read back in pieces.

jax takes only shapes that divide. XLA pads the others, so the arrays here have padded
shapes, and a `DeviceArray` remembers the true one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from spmd._host_spans import WAIT, span
from spmd._pjrt.client import Sharding, padded
from spmd._program.value import STORED_AS, Value

if TYPE_CHECKING:
    import torch

Index: TypeAlias = tuple[slice, ...]
HostValue: TypeAlias = Any
"""numpy array, torch tensor, number, or a function from an index to one of these."""


@dataclass(frozen=True, slots=True, repr=False)
class DeviceArray:
    """A value over devices; computed in the background until it is read.

    Attributes:
        array: jax's array, of the padded shape.
        shape: Shape without padding.
        dtype: Torch's short name.
    """

    array: jax.Array
    shape: tuple[int, ...]
    dtype: str

    def numpy(self) -> np.ndarray:
        """Copy the whole to the host.

        A value that other processes hold pieces of is gathered first: every process
        must then call this, in the same order.

        Returns:
            A new array of `shape`; bfloat16 and float8 as ml_dtypes has them.
        """
        array = self.array
        with span(WAIT):
            if array.is_fully_addressable or array.is_fully_replicated:
                whole = np.asarray(array)
            else:
                with jax.enable_x64(True):
                    whole = multihost_utils.process_allgather(array, tiled=True)
        return np.array(whole[tuple(slice(0, d) for d in self.shape)])

    def torch(self) -> torch.Tensor:
        """Copy the whole to a CPU tensor; see `numpy`.

        Returns:
            A new tensor.
        """
        return as_torch(self.numpy(), self.dtype)

    def local_shards(self) -> list[tuple[int, int, Index, np.ndarray]]:
        """Pieces on the devices of this process, without padding.

        Returns:
            For each: the device's id, which replica it is, the part of the whole it
            covers, and its values.
        """
        found = []
        for shard in self.array.addressable_shards:
            part = clipped(shard.index, self.shape)
            inside = tuple(slice(0, s.stop - s.start) for s in part)
            data = np.array(np.asarray(shard.data)[inside])
            found.append((shard.device.id, shard.replica_id, part, data))
        return found

    def wait(self) -> DeviceArray:
        """Wait until it is computed.

        Returns:
            Itself.
        """
        with span(WAIT):
            self.array.block_until_ready()
        return self

    def item(self) -> Any:
        """The number in a value of one element.

        Returns:
            A Python number.

        Raises:
            ValueError: More than one element.
        """
        return self.numpy().item()

    def detach(self) -> DeviceArray:
        """Itself: it has no gradient."""
        return self

    def cpu(self) -> torch.Tensor:
        """Copy the whole to a CPU tensor, as `torch`."""
        return self.torch()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __float__(self) -> float:
        return float(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)})"


def put(value: HostValue, target: Value, sharding: Sharding) -> jax.Array:
    """Bring a host value to the devices, piece by piece.

    Args:
        value: The whole, or a function that is called with the index of each piece
            (one slice per dim, without padding) and returns it. Pieces that several
            devices hold may be asked for several times.
        target: What it becomes: name, shape and dtype.
        sharding: How it is split.

    Returns:
        jax's array, of the padded shape.

    Raises:
        TypeError: Something that is no array.
        ValueError: Another shape or dtype.
    """
    if callable(value) and not hasattr(value, "shape"):
        source = cast(Callable[[Index], Any], value)
    else:
        array = as_numpy(value, target)
        if array.shape != target.shape:
            raise ValueError(_misfit(target, array.shape, target.shape))
        source = array.__getitem__
    whole = padded(target.shape, sharding)

    def piece(index: Index | None) -> np.ndarray:
        assert index is not None  # only fully replicated specs without a mesh give None
        part = clipped(index, target.shape)
        want = tuple(s.stop - s.start for s in part)
        data = as_numpy(source(part), target)
        if data.shape != want:
            raise ValueError(_misfit(target, data.shape, want, part))
        full = tuple(
            len(range(*s.indices(d))) for s, d in zip(index, whole, strict=True)
        )
        if full == want:
            return data
        filled = np.zeros(full, data.dtype)
        filled[tuple(slice(0, n) for n in want)] = data
        return filled

    with jax.enable_x64(True):  # else jax makes int64 an int32
        return jax.make_array_from_callback(whole, sharding, piece)


def put_parts(
    target: Value,
    sharding: Sharding,
    pieces: Callable[[Sequence[Index]], Sequence[HostValue]],
) -> DeviceArray:
    """Bring a value to the devices from pieces that are all asked for at once.

    Args:
        target: What it becomes: name, shape and dtype.
        sharding: How it is split.
        pieces: Gives the value's parts at indices; called once, with each part that
            the devices of this process hold.

    Returns:
        The value.
    """
    whole = padded(target.shape, sharding)
    places = sharding.addressable_devices_indices_map(whole).values()
    clips = (clipped(i, target.shape) for i in places if i is not None)
    parts = {_ends(part): part for part in clips}
    found = dict(zip(parts, pieces(list(parts.values())), strict=True))
    array = put(lambda index: found[_ends(index)], target, sharding)
    return DeviceArray(array, target.shape, target.dtype)


def _ends(index: Index) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in index)


def clipped(index: Index, shape: tuple[int, ...]) -> Index:
    """The part of a padded index that lies inside a shape.

    Args:
        index: One slice per dim; open ends allowed.
        shape: Shape without padding.

    Returns:
        Slices with both ends; empty ones where there is padding only.

    Example:
        >>> clipped((slice(3, 6), slice(None)), (5, 2))
        (slice(3, 5, None), slice(0, 2, None))
    """
    return tuple(
        slice(min(s.start or 0, d), d if s.stop is None else min(s.stop, d))
        for s, d in zip(index, shape, strict=True)
    )


def as_numpy(value: Any, target: Value) -> np.ndarray:
    """A host value as numpy, of the target's dtype.

    Args:
        value: numpy array, torch tensor, or a number.
        target: Name and dtype.

    Returns:
        An array, over the same memory where there is one.

    Raises:
        TypeError: Something that is no array.
        ValueError: An array of another dtype.
    """
    wanted = np.dtype(target.dtype)
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        array = _from_torch(value)
    elif isinstance(value, bool | int | float | complex):
        return np.asarray(value, wanted)
    else:
        array = np.asarray(value)
    if array.dtype.kind in "OUSM":
        raise TypeError(f"{target.name}: {type(value).__name__} is no array or tensor")
    if array.dtype != wanted:
        raise ValueError(
            f"{target.name} is {array.dtype}, the program takes {target.dtype}; "
            f"convert it first, e.g. tensor.to(torch.{target.dtype})"
        )
    return array


def _from_torch(tensor: torch.Tensor) -> np.ndarray:
    import torch

    host = tensor.detach().cpu().contiguous()
    dtype = str(host.dtype).removeprefix("torch.")
    stored = STORED_AS.get(dtype, dtype)
    if stored == dtype:
        return host.numpy()
    return host.view(getattr(torch, stored)).numpy().view(np.dtype(dtype))


def as_torch(array: np.ndarray, dtype: str) -> torch.Tensor:
    """A CPU tensor over an array's memory.

    Args:
        array: A writable array.
        dtype: Torch's short name of its dtype.

    Returns:
        The tensor.
    """
    import torch

    stored = np.ascontiguousarray(array).reshape(array.shape).view(STORED_AS[dtype])
    return torch.from_numpy(stored).view(getattr(torch, dtype))


def _misfit(
    target: Value,
    got: tuple[int, ...],
    want: tuple[int, ...],
    part: Index | None = None,
) -> str:
    where = "" if part is None else f", piece {[(s.start, s.stop) for s in part]}"
    return f"{target.name}{where} has shape {list(got)}, the program takes {list(want)}"
