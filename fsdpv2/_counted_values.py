"""Random values of torch's distributions, from random words.

Words are those of `spmd._ops.counter_random.words`: two whole numbers of 24 bits each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from spmd._ops.counter_random import BITS

Words = tuple[torch.Tensor, torch.Tensor]
Given = dict[str, Any]

_STEP = 2.0**-BITS
_DIGITS = {torch.float32: BITS, torch.float16: 11, torch.bfloat16: 8}
_MOST = 2**40  # whole numbers in a range: the remainder of 48 bits is still even


def shape_and_dtype(given: Given) -> tuple[tuple[int, ...], torch.dtype]:
    """Of what a random operation draws.

    Args:
        given: Its arguments by name.

    Returns:
        Shape and dtype.
    """
    like = given.get("self", given.get("input"))
    dtype = given.get("dtype")
    if not isinstance(dtype, torch.dtype):  # a default, which torch gives as a number
        dtype = None
    if like is not None:
        return tuple(like.shape), dtype or like.dtype
    if "size" in given:
        is_whole = "high" in given
        usual = torch.int64 if is_whole else torch.get_default_dtype()
        return tuple(given["size"]), dtype or usual
    tensors = [v for v in given.values() if isinstance(v, torch.Tensor)]
    return tuple(torch.broadcast_shapes(*(t.shape for t in tensors))), tensors[0].dtype


def drop_out(words: Words, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
    """What `aten.native_dropout` gives.

    Args:
        words: Of the shape of its input.
        given: Its arguments by name.

    Returns:
        The scaled values, and which were kept.
    """
    value, p = given["input"], float(given["p"])
    kept = _is_below(words, 1 - p)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return value * kept.to(value.dtype) * scale, kept


def _is_below(words: Words, p: Any) -> torch.Tensor:
    if isinstance(p, torch.Tensor):
        return words[0].float() * _STEP < p
    if not 0 <= p <= 1:
        raise ValueError(f"bernoulli: p={p}; from 0 to 1 is allowed")
    return words[0] < round(p * 2**BITS)


def _bernoulli(words: Words, given: Given, dtype: torch.dtype) -> torch.Tensor:
    return _is_below(words, given.get("p", given["self"])).to(dtype)


def _unit(words: Words, given: Given, dtype: torch.dtype) -> torch.Tensor:
    """From 0 up to but without 1, in steps that the dtype holds exactly."""
    first, second = words
    if dtype == torch.float64:
        return (first.double() + second.double() * _STEP) * _STEP
    if dtype not in _DIGITS:
        raise ValueError(f"random values of {dtype}: a floating dtype is needed")
    digits = _DIGITS[dtype]
    value = first.float() * 2.0 ** (digits - BITS)
    if digits < BITS:
        value = torch.floor(value)
    return (value * 2.0**-digits).to(dtype)


def _uniform(words: Words, given: Given, dtype: torch.dtype) -> torch.Tensor:
    low, high = given["from"], given["to"]
    return _unit(words, given, dtype) * (high - low) + low


def _standard(words: Words, given: Given, dtype: torch.dtype) -> torch.Tensor:
    """Normal values, by Box and Muller's transform."""
    wide = dtype if dtype == torch.float64 else torch.float32
    first, second = (word.to(wide) for word in words)
    radius = torch.sqrt(-2.0 * torch.log((first + 1.0) * _STEP))
    return (radius * torch.cos(second * (2.0 * math.pi * _STEP))).to(dtype)


def _normal(words: Words, given: Given, dtype: torch.dtype) -> torch.Tensor:
    return _standard(words, given, dtype) * given["std"] + given["mean"]


def _exponential(words: Words, given: Given, dtype: torch.dtype) -> torch.Tensor:
    """Never 0, as in torch: what follows may take the logarithm."""
    wide = dtype if dtype == torch.float64 else torch.float32
    unit = (words[0].to(wide) + 0.5) * _STEP
    return (-torch.log(unit).clamp(max=-_STEP) / given["lambd"]).to(dtype)


def _randint(words: Words, given: Given, dtype: torch.dtype) -> torch.Tensor:
    low = given.get("low", given.get("from")) or 0
    high = given.get("high", given.get("to"))
    if high is None:
        high = 2 ** _DIGITS[dtype] if dtype in _DIGITS else torch.iinfo(dtype).max + 1
    if not isinstance(high, int) or not 0 < high - low <= _MOST:
        raise ValueError(
            f"random whole numbers from {low} to {high}: 1 to 2**40 of them are allowed"
        )
    first, second = (word.long() for word in words)
    return ((first * 2**BITS + second) % (high - low) + low).to(dtype)


VALUES: dict[str, Callable[[Words, Given, torch.dtype], torch.Tensor]] = {
    "bernoulli": _bernoulli,
    "exponential": _exponential,
    "normal": _normal,
    "rand": _unit,
    "randint": _randint,
    "randn": _standard,
    "random": _randint,
    "uniform": _uniform,
}
"""For a name of `torch.ops.aten`: takes words, its arguments by name, and a dtype."""
