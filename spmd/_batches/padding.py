"""How many rows a batch must have to divide, and adding the missing ones."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from spmd._batches.leaf import pad_rows
from spmd._batches.rows import Hosts, host_tiles
from spmd._batches.spec import Leaf, batch_rows
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import entry_axes

PadValues: TypeAlias = Mapping[Any, float] | None


def check_pad(leaves: Sequence[Leaf], pad: bool | int, values: PadValues) -> None:
    """Check what a caller says about padding against the tensors of a batch.

    Args:
        leaves: The tensors.
        pad: See `shard_batch`.
        values: See `shard_batch`.

    Raises:
        TypeError: `pad` is no bool or int.
        ValueError: A negative `pad`, values without `pad`, for a key the batch lacks,
            or that the tensor's dtype cannot hold.
    """
    if not isinstance(pad, int):
        raise TypeError(f"pad={pad!r}; True, False or a number of rows is needed")
    if pad < 0:
        raise ValueError(f"pad={pad}; a number of rows is 0 or more")
    if not values:
        return
    if not pad:
        raise ValueError(f"pad_values={dict(values)} without pad=True adds no rows")
    keys = [leaf.key for leaf in leaves]
    for key, value in values.items():
        if key not in keys:
            near = difflib.get_close_matches(str(key), [str(k) for k in keys], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"pad_values names {key!r}; the batch has {keys}{hint}")
        for leaf in leaves:
            if leaf.key == key and not _holds(leaf.tensor.dtype, value):
                raise ValueError(
                    f"pad_values: {leaf.path} is {leaf.tensor.dtype}, which cannot "
                    f"hold {value!r}"
                )


def _holds(dtype: torch.dtype, value: float) -> bool:
    if dtype.is_floating_point or dtype.is_complex:
        return True
    if dtype == torch.bool:
        return value in (0, 1)
    info = torch.iinfo(dtype)
    return value == int(value) and info.min <= value <= info.max


def pad_leaves(
    leaves: Sequence[Leaf | None],
    mesh: Mesh,
    hosts: Hosts,
    *,
    host: int,
    pad: bool | int,
    values: PadValues,
) -> tuple[Leaf | None, ...]:
    """Give every tensor as many rows as divide, or say why it has not.

    Args:
        leaves: Leaves of a batch, `None` where one is no tensor.
        mesh: The mesh.
        hosts: Device ids of each process.
        host: Index of this process.
        pad: See `shard_batch`.
        values: See `shard_batch`.

    Returns:
        The leaves, padded.

    Raises:
        ValueError: Rows that do not divide without `pad`, or none at all.
    """
    batch = batch_rows(leaf for leaf in leaves if leaf is not None)
    done: dict[tuple[int, int, float | None], torch.Tensor] = {}
    result: list[Leaf | None] = []
    for leaf in leaves:
        if leaf is None or not leaf.has_rows:
            result.append(leaf)
            continue
        ways = _ways(leaf, mesh, hosts, host)
        least = int(pad) if leaf.tensor.shape[0] == batch else 1
        rows = (
            _rows_needed(leaf, mesh, ways, least) if pad else _checked(leaf, mesh, ways)
        )
        fill = (values or {}).get(leaf.key)
        # Labels that are the same tensor as the inputs stay the same tensor.
        key = (id(leaf.tensor), rows, fill)
        if key not in done:
            done[key] = pad_rows(leaf.tensor, rows, value=fill)
        result.append(dataclasses.replace(leaf, tensor=done[key]))
    return tuple(result)


def _ways(leaf: Leaf, mesh: Mesh, hosts: Hosts, host: int) -> int:
    """Shards that this tensor's rows are spread over.

    A CPU tensor holds this process's rows; one on the device, or meta, is the whole.
    """
    if leaf.tensor.device.type == "cpu":
        return len(host_tiles(mesh, leaf.spec[0], hosts)[host])
    return mesh.axis_size(entry_axes(leaf.spec[0]))


def _rows_needed(leaf: Leaf, mesh: Mesh, ways: int, least: int) -> int:
    rows = leaf.tensor.shape[0]
    if rows == 0:
        raise ValueError(
            f"{leaf.path} {leaf.shape} has no row to repeat; drop this batch"
        )
    return -(-max(rows, least) // ways) * ways


def _checked(leaf: Leaf, mesh: Mesh, ways: int) -> int:
    rows = leaf.tensor.shape[0]
    if rows % ways == 0 and (rows or ways == 1):
        return rows
    shards = mesh.axis_size(entry_axes(leaf.spec[0]))
    over = f"{ways} shards of {leaf.spec[0]!r}"
    if shards != ways:
        over += f" on this process ({shards} in all)"
    below, above = rows // ways * ways, -(-max(rows, 1) // ways) * ways
    if not below:
        raise ValueError(
            f"{leaf.path} {leaf.shape}: a batch of {rows} rows is smaller than the "
            f"{over}; use {ways} rows or a multiple, a mesh that splits the batch "
            f"less, or pad=True to repeat the last row"
        )
    raise ValueError(
        f"{leaf.path} {leaf.shape}: {rows} rows do not divide over the {over}; use "
        f"{below} or {above} rows, drop the last incomplete batch (drop_last=True in a "
        f"DataLoader), or pad=True to repeat the last row"
    )
