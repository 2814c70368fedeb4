"""Values of modules whose state lives in jax's arrays, without bringing it back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spmd.checkpoint._read import Advance
from spmd.checkpoint._shards import Offsets, Reader
from spmd.checkpoint._source import Source
from spmd.checkpoint._team import Team, current_team

if TYPE_CHECKING:
    from spmd._jax.device_array import DeviceArray
    from spmd._jax.step import JaxStep

Refill = Callable[[Source, str, Advance], None]
"""Replaces the values of a tensor by those of a source, under a key."""


def elsewhere(*modules: nn.Module) -> dict[int, Reader]:
    """Where the values of hollow tensors are.

    Args:
        *modules: Any.

    Returns:
        By identity of the tensor; empty where every tensor has its own values.
    """
    found = {}
    for step in _owners(*modules):
        arrays, waiting = step.arrays(), step.waiting()
        for name, tensor in _hollow(step).items():
            if arrays is not None and name in arrays:
                found[id(tensor)] = reader_of(arrays[name])
            elif name in waiting:
                found[id(tensor)] = _host_reader(waiting[name], tuple(tensor.shape))
    return found


def gathered(*modules: nn.Module) -> dict[int, Reader]:
    """The same as `elsewhere`, but each is all of a tensor, in every process.

    Pieces of other processes are fetched when one is called, so every process must call
    each, in the same order.

    Args:
        *modules: Any.
    """
    found = elsewhere(*modules)
    for step in _owners(*modules):
        arrays, waiting = step.arrays() or {}, step.waiting()
        for name, tensor in _hollow(step).items():
            if name in arrays and not arrays[name].array.is_fully_addressable:
                found[id(tensor)] = gathering(arrays[name])
            elif name in waiting:
                source, shape = waiting[name], tuple(tensor.shape)
                found[id(tensor)] = _host_reader(source, shape, team=Team())
    return found


def refills(*modules: nn.Module) -> dict[int, Refill]:
    """How to replace the values of hollow tensors where they are.

    The host holds the pieces of one tensor (of a stack: all its rows) for its devices;
    each once.

    Args:
        *modules: Any.

    Returns:
        By identity of the tensor; empty where every tensor has its own values.
    """
    found = {}
    for step in _owners(*modules):
        known = {*(step.arrays() or ()), *step.waiting()}
        for name, tensor in _hollow(step).items():
            if name in known:
                found[id(tensor)] = _refill(step, name, tensor.dtype)
    return found


def _hollow(step: JaxStep) -> dict[str, torch.Tensor]:
    return {n: t for n, t in step.tensors().items() if t.device.type == "meta"}


def reader_of(whole: DeviceArray) -> Reader:
    """The parts of a value in the devices that this process writes.

    Args:
        whole: The value.
    """
    import numpy as np

    from spmd._jax.device_array import as_torch, clipped

    def read(row: int | None = None) -> Offsets:
        array = _row(whole, row)
        for shard in array.array.addressable_shards:
            part = clipped(shard.index, array.shape)
            if shard.replica_id == 0 and all(s.stop > s.start for s in part):
                # jax keeps what it copied to the host with the array it came from: of
                # a copy, that goes when the copy does.
                there = shard.device.platform == "cpu"
                data = np.asarray(shard.data if there else shard.data.copy())
                data = np.array(data[tuple(slice(0, s.stop - s.start) for s in part)])
                yield tuple(s.start for s in part), as_torch(data, array.dtype)

    return read


def gathering(array: DeviceArray) -> Reader:
    """All of a value, in every process; see `gathered`.

    Args:
        array: The value.
    """

    def read(row: int | None = None) -> Offsets:
        whole = _row(array, row).torch()
        yield (0,) * whole.ndim, whole

    return read


def _row(array: DeviceArray, row: int | None) -> DeviceArray:
    """A row of a value, in the devices; every process that has some of it must call."""
    if row is None:
        return array
    from spmd.checkpoint._rows import row_of

    return row_of(array, row)


def _host_reader(
    source: Callable[[tuple[slice, ...]], Any],
    shape: tuple[int, ...],
    *,
    team: Team | None = None,
) -> Reader:
    def read(row: int | None = None) -> Offsets:
        if (team or current_team()).index == 0:  # every process has all of it
            found = piece_of(source, tuple(slice(0, d) for d in shape), row)
            yield (0,) * found.ndim, found

    return read


def piece_of(
    source: Callable[[tuple[slice, ...]], Any],
    index: tuple[slice, ...],
    row: int | None = None,
) -> torch.Tensor:
    """A copy of what a source gives at an index.

    Args:
        source: Gives pieces on the host.
        index: A slice for each dim.
        row: Only this index along the first dim, without that dim.
    """
    if row is None:
        return torch.as_tensor(source(index)).detach().clone()
    one = source((slice(row, row + 1), *index[1:]))
    return torch.as_tensor(one).detach()[0].clone()


def _refill(step: JaxStep, name: str, dtype: torch.dtype) -> Refill:
    def refill(source: Source, key: str, advance: Advance) -> None:
        step.replace(name, reading(source, key, dtype, advance))

    return refill


def reading(
    source: Source, key: str, dtype: torch.dtype, advance: Advance
) -> Callable[[Sequence[tuple[slice, ...]]], list[torch.Tensor]]:
    """What reads parts of a tensor.

    Args:
        source: Where it is.
        key: What the source calls it.
        dtype: What it becomes.
        advance: Called with the number of bytes that were read.

    Returns:
        A function from indices to CPU tensors.
    """

    def pieces(parts: Sequence[tuple[slice, ...]]) -> list[torch.Tensor]:
        offsets = [tuple(s.start for s in part) for part in parts]
        boxes = [
            torch.empty([s.stop - s.start for s in part], dtype=dtype) for part in parts
        ]
        regions = [
            ((offset, tuple(box.shape)), box)
            for offset, box in zip(offsets, boxes, strict=True)
            if box.numel()
        ]
        source.fill(key, regions, advance=advance)
        return boxes

    return pieces


def seed(model: nn.Module) -> int | None:
    """The random seed of the next step on jax, or None if no step runs there.

    Args:
        model: Any module.
    """
    return next((step.seed for step in _owners(model)), None)


def set_seed(model: nn.Module, seed: int) -> None:
    """Have the next step on jax use a random seed.

    Args:
        model: Any module.
        seed: From `seed`.
    """
    for step in _owners(model):
        step.seed = seed


def bring_back(*modules: nn.Module) -> None:
    """Have modules and their optimizers hold their values again.

    Args:
        *modules: Any.
    """
    for step in _owners(*modules):
        step.pull()


def _owners(*modules: nn.Module) -> list[JaxStep]:
    if "spmd._jax.step" not in sys.modules:
        return []  # then no step runs on jax
    from spmd._jax.step import owners_of

    return owners_of(*modules)
