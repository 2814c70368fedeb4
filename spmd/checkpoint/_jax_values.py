"""Values of a model whose state lives in jax's arrays, without bringing it back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from spmd.checkpoint._shards import Reader

if TYPE_CHECKING:
    from spmd._jax_step import JaxStep


def elsewhere(model: nn.Module) -> dict[int, Reader]:
    """Where the values of hollow tensors are.

    Args:
        model: Any module.

    Returns:
        By identity of the tensor; empty where every tensor has its own values.
    """
    step = _owner(model)
    arrays = None if step is None else step.arrays()
    if step is None or arrays is None:
        return {}
    hollow = {n: t for n, t in step.tensors().items() if t.device.type == "meta"}
    if any(name not in arrays for name in hollow):
        step.pull()  # some wait on the host, for a variant of the step that reads them
        return {}
    return {id(tensor): _reader(arrays[name]) for name, tensor in hollow.items()}


def _reader(array: object) -> Reader:
    from spmd._device_array import DeviceArray, as_torch

    assert isinstance(array, DeviceArray)

    def read() -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
        for _, replica, part, data in array.local_shards():
            if replica == 0 and all(s.stop > s.start for s in part):
                yield tuple(s.start for s in part), as_torch(data, array.dtype)

    return read


def seed(model: nn.Module) -> int | None:
    """The random seed of the next step on jax, or None if no step runs there.

    Args:
        model: Any module.
    """
    step = _owner(model)
    return None if step is None else step.seed


def bring_back(model: nn.Module) -> None:
    """Have a model and its optimizer hold their values again.

    Args:
        model: Any module.
    """
    step = _owner(model)
    if step is not None:
        step.pull()


def _owner(model: nn.Module) -> JaxStep | None:
    if "spmd._jax_step" not in sys.modules:
        return None  # then no step runs on jax
    from spmd._jax_step import owner_of

    return owner_of(model)
