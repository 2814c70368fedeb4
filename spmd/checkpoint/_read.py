"""Read pieces, check each, and put together the boxes that are wanted."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spmd.checkpoint._dcp import Region, read_plan
from spmd.checkpoint._error import CheckpointError
from spmd.checkpoint._folder import Folder
from spmd.checkpoint._manifest import Piece, TensorEntry

Advance = Callable[[int], None]


def read_piece(folder: Folder, piece: Piece, key: str) -> bytes:
    """The bytes of a piece.

    Args:
        folder: The checkpoint.
        piece: Which.
        key: What it belongs to, for messages.

    Returns:
        What `torch.save` wrote.

    Raises:
        CheckpointError: It is missing, too short or damaged.
    """
    where = f"{folder.url}: {key}, {piece.describe()}"
    try:
        data = folder.read(piece.file, at=piece.at, size=piece.size_bytes)
    except FileNotFoundError:
        raise CheckpointError(f"{where}: the file is missing") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{where}: it cannot be read ({reason})") from error
    if len(data) != piece.size_bytes:
        raise CheckpointError(
            f"{where}: the file is cut off; {len(data)} of {piece.size_bytes} bytes "
            f"are there"
        )
    if zlib.crc32(data) != piece.crc32:
        raise CheckpointError(f"{where}: damaged, its checksum does not match")
    return data


def read_object(folder: Folder, piece: Piece, key: str) -> Any:
    """An object.

    Args:
        folder: The checkpoint.
        piece: Where it is.
        key: What it is called.

    Returns:
        Plain values and CPU tensors.

    Raises:
        CheckpointError: See `read_piece`.
    """
    stream = io.BytesIO(read_piece(folder, piece, key))
    return torch.load(stream, map_location="cpu", weights_only=True)


def fill_regions(
    folder: Folder,
    entry: TensorEntry,
    key: str,
    regions: Sequence[tuple[Region, torch.Tensor]],
    *,
    advance: Advance,
) -> None:
    """Fill boxes of a tensor; each piece that is needed is read once.

    Args:
        folder: The checkpoint.
        entry: The tensor in it.
        key: What it is called.
        regions: Boxes, each with a CPU tensor of its shape.
        advance: Called with the number of bytes that were read.

    Raises:
        CheckpointError: A missing or damaged piece, or pieces that leave something out.
    """
    plan = read_plan(entry, [region for region, _ in regions])
    num_filled = 0
    for index in sorted(plan):
        piece = entry.pieces[index]
        stream = io.BytesIO(read_piece(folder, piece, key))
        data = torch.load(stream, map_location="cpu", weights_only=True)
        del stream
        for item in plan[index]:
            assert item.dest_index.index is not None
            target = regions[item.dest_index.index][1]
            source = data[_box(item.storage_offsets, item.lengths)]
            target[_box(item.dest_offsets, item.lengths)].copy_(source)
            num_filled += source.numel()
        advance(data.nbytes)
    wanted = sum(tensor.numel() for _, tensor in regions)
    if num_filled != wanted:
        raise CheckpointError(
            f"{folder.url}: the pieces of {key} {list(entry.shape)} cover {num_filled} "
            f"of the {wanted} elements that are needed here"
        )


def _box(offsets: Sequence[int], lengths: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(offsets, lengths, strict=True))
