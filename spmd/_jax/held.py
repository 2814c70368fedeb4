"""Values in the devices before any step has run, as a promise gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spmd._jax.device_array import (
    DeviceArray,
    HostValue,
    Index,
    as_torch,
    clipped,
    put_parts,
)
from spmd._marking.mark import Annotation
from spmd._meshes.sharding import to_hlo
from spmd._pjrt import client as pjrt
from spmd._program.value import Value


@dataclass(frozen=True, slots=True)
class Held:
    """Gives pieces of what the devices hold; see `spmd._marking.promise.promise`.

    Attributes:
        array: The value.
    """

    array: DeviceArray

    def __call__(self, index: Index) -> torch.Tensor:
        """Copy a piece to the host.

        Args:
            index: One slice per dim, with start and stop.

        Returns:
            A new CPU tensor.

        Raises:
            ValueError: Devices of other processes have a part of it.
        """
        value = self.array
        size = tuple(max(0, s.stop - s.start) for s in index)
        box = np.zeros(size, value.array.dtype)
        found: dict[tuple[tuple[int, int], ...], None] = {}
        filled = 0
        for shard in value.array.addressable_shards:
            part = clipped(shard.index, value.shape)
            both = [
                (max(p.start, s.start), min(p.stop, s.stop))
                for p, s in zip(part, index, strict=True)
            ]
            key = tuple(both)
            if key in found or any(stop <= start for start, stop in both):
                continue
            found[key] = None
            # jax keeps what it copied to the host with the array that it is of.
            here = shard.device.platform == "cpu"
            data = np.asarray(shard.data if here else shard.data.copy())
            box[_inside(both, index)] = data[_inside(both, part)]
            filled += int(np.prod([stop - start for start, stop in both]))
        if filled != box.size:
            raise ValueError(
                f"a piece {[(s.start, s.stop) for s in index]} of a loaded tensor "
                f"{list(value.shape)} is on devices of other processes; have the step "
                f"split the tensor as it was when the checkpoint was loaded"
            )
        return as_torch(box, value.dtype)


def hold(
    tensor: torch.Tensor,
    split: Annotation,
    pieces: Callable[[Sequence[Index]], Sequence[HostValue]],
) -> Held:
    """Put values into the devices, split as a tensor is.

    Args:
        tensor: Of their shape and dtype, on meta.
        split: Its annotation.
        pieces: Gives the parts at indices; called once, with each part that the
            devices of this process hold.

    Returns:
        What to promise.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    order = pjrt.devices(split.mesh)
    sharding = pjrt.placement(order, to_hlo(split.mesh, split.spec))
    target = Value("a loaded tensor", "buffer", tuple(tensor.shape), dtype)
    return Held(put_parts(target, sharding, pieces))


def _inside(both: Sequence[tuple[int, int]], index: Index) -> Index:
    return tuple(
        slice(start - s.start, stop - s.start)
        for (start, stop), s in zip(both, index, strict=True)
    )
