"""Split a value in another way, on the devices that it is on."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from spmd._jax.device_array import DeviceArray
from spmd._pjrt.client import Sharding, padded


def resharded(value: DeviceArray, sharding: Sharding) -> jax.Array:
    """Split a value in another way, without a way over the host.

    `jax.device_put` takes only its own `NamedSharding` where the pieces are on devices
    of several processes. A program that hands its argument on takes any.

    Args:
        value: The value. With several processes every one must call this, in the same
            order, unless it is split so already.
        sharding: How to split it, over the same devices.

    Returns:
        jax's array, padded as `sharding` needs; the value's own where it is split so.
    """
    array, shape = value.array, padded(value.shape, sharding)
    if array.shape == shape and array.sharding == sharding:
        return array
    if array.shape == shape and array.is_fully_addressable:
        return jax.device_put(array, sharding)
    return _mover(value.shape, shape, sharding)(array)


@functools.lru_cache(maxsize=1024)
def _mover(
    shape: tuple[int, ...], padded_shape: tuple[int, ...], sharding: Sharding
) -> Callable[[jax.Array], jax.Array]:
    whole = tuple(slice(0, size) for size in shape)
    more = [(0, to - size) for to, size in zip(padded_shape, shape, strict=True)]

    def move(array: jax.Array) -> jax.Array:
        return jnp.pad(array[whole], more)

    return jax.jit(move, out_shardings=sharding)
