"""Draw by counting as `spmd._ops.counter_random` does, in numpy, and in a CPU model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

TURNS = (13, 15, 26, 6, 17, 29, 16, 24)


def threefry(key: Any, low: Any, high: Any) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 with 20 rounds, on whole numbers modulo 2 ** 32."""
    k0, k1 = (np.atleast_1d(np.array(k, np.int64)).astype(np.uint32) for k in key)
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    a = np.atleast_1d(np.array(low, np.int64)).astype(np.uint32) + k0
    b = np.atleast_1d(np.array(high, np.int64)).astype(np.uint32) + k1
    for i in range(20):
        turn = np.uint32(TURNS[i % 8])
        a = a + b
        b = ((b << turn) | (b >> (np.uint32(32) - turn))) ^ a
        if i % 4 == 3:
            group = i // 4 + 1
            a = a + keys[group % 3]
            b = b + keys[(group + 1) % 3] + np.uint32(group)
    return a, b


def word_arrays(key: Any, shape: Any, *, number: int) -> list[np.ndarray]:
    """What `spmd._ops.counter_random.words` gives."""
    mine = [word[0] for word in threefry(key, number, 0)]
    index = np.arange(math.prod(shape))
    found = threefry(mine, index, np.zeros_like(index))
    return [(word >> np.uint32(8)).astype(np.int32).reshape(shape) for word in found]


class SameDraws(TorchDispatchMode):
    """Have the layers of a model on the CPU drop what scanned ones drop.

    Args:
        layers: Its layers, in order.
        keys: int32 [num_layers, 2].
    """

    def __init__(self, layers: Any, keys: torch.Tensor) -> None:
        super().__init__()
        self._key: Any = None
        self._number = 0
        self.masks: list[torch.Tensor] = []
        for layer, key in zip(layers, keys.tolist(), strict=True):
            layer.register_forward_pre_hook(lambda *_, key=key: self._start(key))

    def _start(self, key: list[int]) -> None:
        self._key, self._number = key, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        kind = func.overloadpacket.__name__
        if self._key is None:  # not in a layer
            return func(*args, **(kwargs or {}))
        assert kind in ("bernoulli_", "native_dropout"), kind
        target = args[0]
        first, _ = word_arrays(self._key, tuple(target.shape), number=self._number)
        self._number += 1
        p = ([*args, 0.5])[1] if kind == "bernoulli_" else 1 - args[1]
        mask = torch.from_numpy(first < round(p * 2**24))
        self.masks.append(mask)
        if kind == "bernoulli_":
            return target.copy_(mask)
        return target * mask / p, mask
