"""The parts of a tensor that this process writes, brought to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from spmd.checkpoint._team import Team
from spmd.checkpoint._write import Box

Reader = Callable[[], Iterator[tuple[tuple[int, ...], torch.Tensor]]]
"""Parts of a tensor whose values are elsewhere: offset and data."""


def boxes(
    key: str,
    tensor: torch.Tensor,
    team: Team,
    *,
    read: Reader | None = None,
    copy: bool = False,
) -> Iterator[Box]:
    """Parts of a tensor, each of which one process of the run writes.

    Args:
        key: What it is called.
        tensor: On any device.
        team: The processes.
        read: Where its values are, for a tensor that has none itself.
        copy: Copy what is on the host already: later changes must not show.

    Yields:
        Parts without padding, on the host.
    """
    shape = tuple(tensor.shape)
    if read is not None:
        found = read()
    elif tensor.device.type == "xla":
        found = _from_device(tensor, team)
    else:
        found = _whole(tensor, team)
    mine = copy and read is None and tensor.device.type == "cpu"
    for offset, data in found:
        data = data.clone() if mine else data
        yield Box(key, shape, offset, data)


def _whole(
    tensor: torch.Tensor, team: Team
) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    if team.index == 0:  # every process has all of it
        yield (0,) * tensor.ndim, tensor.detach().cpu()


def _from_device(
    tensor: torch.Tensor, team: Team
) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    from spmd import _torch_xla

    sharding = _torch_xla.sharding_of(tensor)
    if sharding is None or sharding.is_replicated:
        # Asking for the shards would copy the whole from every device.
        yield from _whole(tensor, team)
        return
    shards = _torch_xla.local_shards(tensor)
    shards.reverse()
    while shards:
        _, data, replica, part = shards.pop()
        if replica == 0 and all(s.stop > s.start for s in part):
            inside = tuple(slice(0, s.stop - s.start) for s in part)
            yield tuple(s.start for s in part), data[inside]
