"""Stacks in jax's devices, of which the host holds one row at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import numpy as np
import torch

from spmd._jax.device_array import DeviceArray, HostValue, Index, clipped, put_parts
from spmd._jax.held import Held
from spmd._marking.mark import Annotation
from spmd._meshes.sharding import to_hlo
from spmd._pjrt import client as pjrt
from spmd._pjrt.client import Sharding
from spmd._program.value import Value

Pieces = Callable[[Sequence[Index]], Sequence[HostValue]]


def row_of(value: DeviceArray, row: int) -> DeviceArray:
    """A row of a value, still in the devices.

    Args:
        value: Any of one dim or more; every process that has some of it must call.
        row: Index along the first dim.

    Returns:
        The row, without that dim.
    """
    with jax.enable_x64(True):
        # The index is no constant: one program serves for all rows.
        array = _take(value.array, np.int32(row))
    return DeviceArray(array, value.shape[1:], value.dtype)


def hold_rows(tensor: torch.Tensor, split: Annotation, pieces: Pieces) -> Held:
    """The same as `spmd._jax.held.hold`, a row of a stack at a time.

    Args:
        tensor: Of the shape and dtype of the values, on meta.
        split: Its annotation.
        pieces: Gives the parts at indices; called for each row, with each part of it
            that the devices of this process hold.

    Returns:
        What to promise.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    order = pjrt.devices(split.mesh)
    sharding = pjrt.placement(order, to_hlo(split.mesh, split.spec))
    target = Value("a loaded tensor", "buffer", tuple(tensor.shape), dtype)
    return Held(put_rows(target, sharding, pieces))


def put_rows(target: Value, sharding: Sharding, pieces: Pieces) -> DeviceArray:
    """The same as `spmd._jax.device_array.put_parts`, a row of a stack at a time.

    The devices hold the stack and one row, or two stacks where they cannot write in
    place.

    Args:
        target: What it becomes; its first dim is that of the rows.
        sharding: How it is split.
        pieces: Called for each row; once for all where the first dim is split.

    Returns:
        The value.
    """
    whole = pjrt.padded(target.shape, sharding)
    places = sharding.addressable_devices_indices_map(whole).values()
    num, all_rows = target.shape[0], slice(0, target.shape[0])
    clips = [clipped(i, target.shape) for i in places if i is not None]
    if any(part[0] != all_rows for part in clips):
        return put_parts(target, sharding, pieces)
    one = replace(target, shape=(1, *target.shape[1:]))
    with jax.enable_x64(True):
        array = _zeros(whole, np.dtype(target.dtype), sharding)()
        for row in range(num):
            made = put_parts(one, sharding, functools.partial(_of_row, pieces, row))
            array = _write(sharding)(array, made.array, np.int32(row))
            array.block_until_ready()  # else the host runs ahead, and holds more
    return DeviceArray(array, target.shape, target.dtype)


def _of_row(pieces: Pieces, row: int, parts: Sequence[Index]) -> Sequence[HostValue]:
    return pieces([(slice(row, row + 1), *part[1:]) for part in parts])


@jax.jit
def _take(array: jax.Array, row: np.int32) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(array, row, keepdims=False)


def _zeros(
    shape: tuple[int, ...], dtype: np.dtype, sharding: Sharding
) -> Callable[[], jax.Array]:
    return jax.jit(lambda: jax.numpy.zeros(shape, dtype), out_shardings=sharding)


@functools.cache
def _write(sharding: Sharding) -> Callable[..., jax.Array]:
    def write(array: jax.Array, one: jax.Array, row: np.int32) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(array, one, row, axis=0)

    return jax.jit(write, donate_argnums=0, out_shardings=sharding)
