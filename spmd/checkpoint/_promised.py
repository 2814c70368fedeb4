"""Tensors on meta whose values wait in jax's devices, or are made when asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._marking.mark import Annotation, get_sharding
from spmd._marking.promise import Source as Promised
from spmd._marking.promise import promise, promised
from spmd._meshes.spec import num_shards, shard_shape
from spmd._runtime import num_devices, runtime
from spmd.checkpoint._jax_values import gathering, piece_of, reader_of, reading
from spmd.checkpoint._read import Advance
from spmd.checkpoint._shards import Offsets, Reader
from spmd.checkpoint._source import Source
from spmd.checkpoint._team import current_team


def can_promise(tensor: torch.Tensor) -> bool:
    """Whether values for a tensor, or one split alike, can go into jax's devices now.

    Args:
        tensor: Any tensor.

    Returns:
        False where jax does not execute, the tensor is not split, or its mesh is not
        that of jax's default devices.
    """
    if runtime() != "jax":
        return False
    split = get_sharding(tensor)
    return split is not None and split.mesh.size <= num_devices()


def promise_from(
    tensor: torch.Tensor, source: Source, key: str, advance: Advance
) -> None:
    """Read a tensor into jax's devices, and promise what is there.

    The host holds the pieces for its devices, each once, and only now; of a stack those
    of one row at a time.

    Args:
        tensor: On meta; `can_promise` allows it.
        source: Where its values are.
        key: What the source calls it.
        advance: Called with the number of bytes that were read.
    """
    split = get_sharding(tensor)
    assert split is not None
    pieces = reading(source, key, tensor.dtype, advance)
    if source.is_stack(key):
        from spmd.checkpoint._rows import hold_rows as hold
    else:
        from spmd._jax.held import hold
    promise(tensor, hold(tensor, split, pieces))


def keep_on_use(*things: Any) -> None:
    """Have promises kept when something outside a step asks for the values.

    Args:
        *things: What was filled; only models and optimizers matter.
    """
    if runtime() == "jax":
        from spmd._plans.fulfil import watch

        watch(*(t for t in things if isinstance(t, nn.Module | Optimizer)))


def promised_values(
    tensors: Iterable[torch.Tensor], *, whole: bool = False
) -> dict[int, Reader]:
    """Where the values of promised tensors are.

    Args:
        tensors: Any.
        whole: Have each process get all of each, for which all must call the readers,
            in the same order; else the parts that it writes.

    Returns:
        By identity of the tensor.
    """
    found = {}
    for tensor in tensors:
        source = promised(tensor)
        if source is None:
            continue
        array = getattr(source, "array", None)  # of `spmd._jax.held.Held`
        if array is not None:
            found[id(tensor)] = gathering(array) if whole else reader_of(array)
        else:
            found[id(tensor)] = _made(source, tensor, whole=whole)
    return found


def _made(source: Promised, tensor: torch.Tensor, *, whole: bool) -> Reader:
    """Parts that are made when they are read; any process can make any."""
    shape, split = tuple(tensor.shape), get_sharding(tensor)

    def read(row: int | None = None) -> Offsets:
        team = current_team()
        parts = [tuple(slice(0, d) for d in shape)] if whole else _parts(shape, split)
        for i, part in enumerate(parts):
            if whole or i % team.count == team.index:
                start = tuple(s.start for s in (part if row is None else part[1:]))
                if row is None or part[0].start <= row < part[0].stop:
                    yield start, piece_of(source, part, row)

    return read


def _parts(shape: tuple[int, ...], split: Annotation | None) -> list[tuple[slice, ...]]:
    """The different pieces that devices have, without padding."""
    if split is None:
        return [tuple(slice(0, d) for d in shape)]
    sizes = shard_shape(shape, split.mesh, split.spec)
    counts = num_shards(split.mesh, split.spec)
    counts = (*counts, *(1,) * (len(shape) - len(counts)))
    found = [
        tuple(
            slice(i * n, min((i + 1) * n, d))
            for i, n, d in zip(place, sizes, shape, strict=True)
        )
        for place in itertools.product(*map(range, counts))
    ]
    return [part for part in found if all(s.stop > s.start for s in part)]
