"""The parts of a tensor that this process writes, brought to the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from spmd.checkpoint._team import Team
from spmd.checkpoint._write import Box

Offsets = Iterator[tuple[tuple[int, ...], torch.Tensor]]


class Reader(Protocol):
    """Reads a tensor whose values are elsewhere."""

    def __call__(self, row: int | None = None) -> Offsets:
        """Parts of it, or of one row.

        Args:
            row: Index along the first dim, which the parts then do not have.

        Returns:
            Offsets and data.
        """
        ...


def boxes(
    key: str,
    tensor: torch.Tensor,
    team: Team,
    *,
    read: Reader | None = None,
    copy: bool = False,
    row: int | None = None,
) -> Iterator[Box]:
    """Parts of a tensor, each of which one process of the run writes.

    Args:
        key: What it is called.
        tensor: On any device.
        team: The processes.
        read: Where its values are, for a tensor that has none itself.
        copy: Copy what is on the host already: later changes must not show.
        row: Only this index along the first dim, without that dim.

    Yields:
        Parts without padding, on the host.
    """
    shape = tuple(tensor.shape if row is None else tensor.shape[1:])
    if read is not None:
        found = read(row)
    elif row is not None:
        found = _whole(_row(tensor, row), team)
    elif tensor.device.type == "xla":
        found = _from_device(tensor, team)
    else:
        found = _whole(tensor, team)
    mine = copy and read is None and tensor.device.type == "cpu"
    for offset, data in found:
        data = data.clone() if mine else data
        yield Box(key, shape, offset, data)


def _whole(tensor: torch.Tensor, team: Team) -> Offsets:
    if team.index == 0:  # every process has all of it
        yield (0,) * tensor.ndim, tensor.detach().cpu()


def _row(tensor: torch.Tensor, row: int) -> torch.Tensor:
    if tensor.device.type != "xla":
        return tensor.detach()[row]
    from spmd._torch_xla import graph as torch_xla_graph

    # An index that is a constant of the graph would be another graph for each row.
    index = torch_xla_graph.scalar(row, torch.int64)
    return tensor.detach().index_select(0, index.reshape(1)).squeeze(0)


def _from_device(tensor: torch.Tensor, team: Team) -> Offsets:
    from spmd._torch_xla import seam

    sharding = seam.sharding_of(tensor)
    if sharding is None or sharding.is_replicated:
        # Asking for the shards would copy the whole from every device.
        yield from _whole(tensor, team)
        return
    shards = seam.local_shards(tensor)
    shards.reverse()
    while shards:
        _, data, replica, part = shards.pop()
        if replica == 0 and all(s.stop > s.start for s in part):
            inside = tuple(slice(0, s.stop - s.start) for s in part)
            yield tuple(s.start for s in part), data[inside]
