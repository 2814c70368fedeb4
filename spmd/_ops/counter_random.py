"""Random bits by counting: the same key and number give the same bits, anywhere.

Threefry-2x32 with 20 rounds, as `jax.random` has it (Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011). Each element is a function of
its own index, so the partitioner splits the bits as what they meet is split, and no
device needs another's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from spmd._torch_xla import seam

BITS = 24  # of each word that `words` gives: all that a float32 in [0, 1) can hold
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_SPACE = 2**32  # elements that one word can count


def words(
    key: torch.Tensor, shape: Sequence[int], *, number: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two random whole numbers for each element.

    Args:
        key: int32 [2], on the XLA device.
        shape: Of what is drawn.
        number: Of this draw; draws of one key with other numbers are independent.

    Returns:
        Two int32 tensors of this shape, from 0 up to but without 2 ** `BITS`.

    Raises:
        ValueError: More elements than can be counted.
    """
    first, second = seam.call_hlo(
        "threefry", [key], threefry_module(tuple(shape), number)
    )
    return first, second


@functools.lru_cache(maxsize=256)
def threefry_module(shape: tuple[int, ...], number: int) -> bytes:
    """What `words` computes, as HLO.

    Args:
        shape: Of what is drawn.
        number: Of this draw.

    Returns:
        A serialised ``HloModuleProto`` that takes the key.

    Raises:
        ValueError: More elements than can be counted.
    """
    body = _Text()
    word, out = _type((), "ui32"), _type(shape, "ui32")
    keys = [
        body.add(
            f"stablehlo.slice %key [{i}:{i + 1}] : "
            f"({_type((2,), 'i32')}) -> {_type((1,), 'i32')}"
        )
        for i in range(2)
    ]
    keys = [
        body.add(
            f"stablehlo.reshape {key} : ({_type((1,), 'i32')}) -> {_type((), 'i32')}"
        )
        for key in keys
    ]
    keys = [
        body.add(f"stablehlo.bitcast_convert {key} : ({_type((), 'i32')}) -> {word}")
        for key in keys
    ]
    # A key for this draw alone, so that two words are left to count elements.
    mine = body.threefry(
        keys, [body.constant(number, word), body.constant(0, word)], word
    )
    spread = [
        body.add(f"stablehlo.broadcast_in_dim {k}, dims = [] : ({word}) -> {out}")
        for k in mine
    ]
    found = body.threefry(spread, body.counters(shape, out), out)
    shifted = [
        body.binary("shift_right_logical", w, body.constant(32 - BITS, out), out)
        for w in found
    ]
    signed = _type(shape, "i32")
    a, b = (
        body.add(f"stablehlo.bitcast_convert {w} : ({out}) -> {signed}")
        for w in shifted
    )
    lines = "\n".join(body.lines)
    from spmd._pjrt import client as pjrt  # importing jax writes to the environment

    return pjrt.hlo_from_stablehlo(f"""
        module @threefry {{
          func.func public @main(%key: {_type((2,), "i32")}) -> ({signed}, {signed}) {{
            {lines}
            return {a}, {b} : {signed}, {signed}
          }}
        }}""")


class _Text:
    """Lines of StableHLO."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._constants: dict[tuple[int, str], str] = {}

    def add(self, operation: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {operation}")
        return name

    def constant(self, value: int, kind: str) -> str:
        if (value, kind) not in self._constants:
            text = f"stablehlo.constant dense<{value}> : {kind}"
            self._constants[value, kind] = self.add(text)
        return self._constants[value, kind]

    def binary(self, name: str, a: str, b: str, kind: str) -> str:
        return self.add(f"stablehlo.{name} {a}, {b} : {kind}")

    def counters(self, shape: tuple[int, ...], kind: str) -> list[str]:
        """Index of each element: within the last dims, and of the dims before them."""
        split = len(shape)
        while split and math.prod(shape[split - 1 :]) <= _SPACE:
            split -= 1
        if math.prod(shape[:split]) > _SPACE:
            raise ValueError(
                f"random values {list(shape)}: more than two words of 32 bits can "
                f"count; draw fewer at once"
            )
        return [
            self._count(shape, range(split, len(shape)), kind),
            self._count(shape, range(split), kind),
        ]

    def _count(self, shape: tuple[int, ...], dims: range, kind: str) -> str:
        total = self.constant(0, kind)
        for dim in dims:
            step = math.prod(shape[dim + 1 : dims.stop])
            index = self.add(f"stablehlo.iota dim = {dim} : {kind}")
            scaled = self.binary("multiply", index, self.constant(step, kind), kind)
            total = self.binary("add", total, scaled, kind)
        return total

    def threefry(self, key: list[str], counter: list[str], kind: str) -> list[str]:
        """Encrypt a counter of two words with a key of two words."""
        third = self.binary("xor", key[0], key[1], kind)
        third = self.binary("xor", third, self.constant(_PARITY, kind), kind)
        keys = [*key, third]
        a = self.binary("add", counter[0], keys[0], kind)
        b = self.binary("add", counter[1], keys[1], kind)
        for group in range(5):
            for turn in _ROTATIONS[group % 2]:
                a = self.binary("add", a, b, kind)
                left = self.constant(turn, kind)
                right = self.constant(32 - turn, kind)
                high = self.binary("shift_left", b, left, kind)
                low = self.binary("shift_right_logical", b, right, kind)
                b = self.binary("or", high, low, kind)
                b = self.binary("xor", a, b, kind)
            a = self.binary("add", a, keys[(group + 1) % 3], kind)
            b = self.binary("add", b, keys[(group + 2) % 3], kind)
            b = self.binary("add", b, self.constant(group + 1, kind), kind)
        return [a, b]


def _type(shape: tuple[int, ...], element: str) -> str:
    return f"tensor<{'x'.join((*map(str, shape), element))}>"
