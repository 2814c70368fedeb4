"""Which rows of the batch each host loads, and what each of its devices gets of them.

Pure arithmetic, so that a pod of hosts can be worked out and tested on one machine. A
host is one process; `hosts` lists the device ids of each.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, SpecEntry, entry_axes, shard_shape, shard_slices

Hosts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """What becomes of one tensor that a host passes.

    Attributes:
        shape: Shape of the whole, over all hosts.
        rows: Where this host's rows lie in the whole, one (start, stop) for each
            stretch; several where its devices are not neighbours in the mesh.
        pieces: For each of the host's devices the part of *its* tensor that it gets.
        piece_shape: Shape of every piece, padding included.
    """

    shape: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[slice, ...], ...]
    piece_shape: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def host_tiles(mesh: Mesh, entry: SpecEntry, hosts: Hosts) -> Hosts:
    """Which tiles of the batch dim the devices of each host hold.

    Args:
        mesh: The mesh.
        entry: The axes that split the batch dim.
        hosts: Device ids of each host.

    Returns:
        Tile indices of each host, ascending. Hosts with equal tiles load the same rows.

    Raises:
        ValueError: Hosts that are not all devices of the mesh, or that share some rows
            but not all.

    Example:
        Two hosts of 4 devices. Where "tensor" crosses them they load the same rows.

        >>> hosts = ((0, 1, 2, 3), (4, 5, 6, 7))
        >>> host_tiles(Mesh({"fsdp": 4, "tensor": 2}), "fsdp", hosts)
        ((0, 1), (2, 3))
        >>> host_tiles(Mesh({"tensor": 2, "fsdp": 4}), "fsdp", hosts)
        ((0, 1, 2, 3), (0, 1, 2, 3))
    """
    if sorted(d for host in hosts for d in host) != sorted(mesh.device_ids):
        raise ValueError(
            f"{mesh!r} has devices 0..{mesh.size - 1}, the hosts have {hosts}; each "
            f"device must belong to exactly one host"
        )
    tile_of = np.zeros(mesh.size, dtype=np.int64)
    where = np.unravel_index(np.arange(mesh.size), mesh.shape)
    for axis in entry_axes(entry):
        tile_of = tile_of * mesh.axis_size(axis) + where[mesh.axis_index(axis)]
    by_device = np.empty(mesh.size, dtype=np.int64)
    by_device[list(mesh.device_ids)] = tile_of
    tiles = tuple(tuple(sorted({int(by_device[d]) for d in host})) for host in hosts)
    _check_uniform(mesh, entry, tiles)
    return tiles


def _check_uniform(mesh: Mesh, entry: SpecEntry, tiles: Hosts) -> None:
    """Any two hosts hold the same tiles or none in common, and equally many."""
    owner: dict[int, int] = {}
    for host, held in enumerate(tiles):
        for tile in held:
            first = owner.setdefault(tile, host)
            if tiles[first] != held:
                raise ValueError(
                    f"batch over {entry!r} on {mesh!r}: hosts {first} and {host} both "
                    f"hold rows of tile {tile}, but host {first} holds tiles "
                    f"{tiles[first]} and host {host} {held}, so no host can load its "
                    f"own part. Order the mesh so that hosts hold the same tiles or "
                    f"different ones, e.g. with the axis inside a host last"
                )
        if len(held) != len(tiles[0]):
            raise ValueError(
                f"batch over {entry!r} on {mesh!r}: host 0 holds {len(tiles[0])} "
                f"tiles, host {host} {len(held)}; every host must load equally many "
                f"rows. Use a mesh whose axes are multiples of the devices of a host"
            )


def host_part(
    mesh: Mesh, entry: SpecEntry, hosts: Hosts, *, host: int = 0
) -> tuple[int, int]:
    """Which part of the data a host loads, and how many parts there are.

    Args:
        mesh: The mesh.
        entry: The axes that split the batch dim.
        hosts: Device ids of each host.
        host: Index of the host.

    Returns:
        Index and number of parts: `rank` and `num_replicas` of a
        ``torch.utils.data.DistributedSampler``.

    Raises:
        ValueError: See `host_tiles`.

    Example:
        >>> hosts = ((0, 1, 2, 3), (4, 5, 6, 7))
        >>> host_part(Mesh({"fsdp": 4, "tensor": 2}), "fsdp", hosts, host=1)
        (1, 2)
        >>> host_part(Mesh({"tensor": 2, "fsdp": 4}), "fsdp", hosts, host=1)
        (0, 1)
    """
    tiles = host_tiles(mesh, entry, hosts)
    parts = sorted(set(tiles))
    return parts.index(tiles[host]), len(parts)


@functools.lru_cache(maxsize=1024)
def place(
    shape: Sequence[int], mesh: Mesh, spec: Spec, *, hosts: Hosts, host: int = 0
) -> Placement:
    """Where the rows that one host passes go.

    The host's rows fill the tiles of its devices in ascending order. Where these are
    neighbours, as in most meshes, the whole is the hosts' parts one after the other.
    On TPU pods they often are not (host 0 of a v5e:4x4 has devices 0, 1, 4 and 5); then
    rows of several hosts alternate in the whole, and each is still used once.

    Args:
        shape: Shape of the tensor that this host passes (a tuple).
        mesh: The mesh.
        spec: A normalised spec; its first entry splits the batch dim.
        hosts: Device ids of each host.
        host: Index of this host.

    Returns:
        The shape of the whole and each local device's part.

    Raises:
        ValueError: Rows that do not divide over the host's tiles; see also
        `host_tiles`.

    Example:
        Host 1 passes 8 rows; its devices 4 to 7 hold 2 tiles, twice each.

        >>> hosts = ((0, 1, 2, 3), (4, 5, 6, 7))
        >>> mesh = Mesh({"fsdp": 4, "tensor": 2})
        >>> placement = place((8,), mesh, ("fsdp",), hosts=hosts, host=1)
        >>> placement.shape, placement.rows
        ((16,), ((8, 16),))
        >>> [piece[0] for piece in placement.pieces][1:3]
        [slice(0, 4, None), slice(4, 8, None)]
    """
    shape = tuple(shape)
    devices = hosts[host]
    if not spec:
        return Placement((), (), ((),) * len(devices), ())
    held = host_tiles(mesh, spec[0], hosts)[host]
    tile_rows, rest = divmod(shape[0], len(held))
    if rest:
        raise ValueError(
            f"{shape[0]} rows do not divide over the {len(held)} shards of "
            f"{spec[0]!r} on host {host}"
        )
    whole = (tile_rows * mesh.axis_size(entry_axes(spec[0])), *shape[1:])
    pieces = []
    for device in devices:
        part = shard_slices(whole, mesh, spec, device=device)
        # Global row r of tile t becomes local row: tile 5 is the third of (0, 1, 5).
        at = held.index(part[0].start // tile_rows) * tile_rows if tile_rows else 0
        pieces.append((slice(at, at + tile_rows), *part[1:]))
    rows = _stretches(held, tile_rows)
    return Placement(whole, rows, tuple(pieces), shard_shape(whole, mesh, spec))


def _stretches(tiles: Sequence[int], tile_rows: int) -> tuple[tuple[int, int], ...]:
    """Neighbouring tiles joined: (0, 1, 4) of 2 rows are rows 0 to 4 and 8 to 10."""
    found: list[tuple[int, int]] = []
    for tile in tiles:
        start, stop = tile * tile_rows, (tile + 1) * tile_rows
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)
