"""The manifest in the words of `torch.distributed.checkpoint`.

Its resharding arithmetic plans what to read, and a ``.metadata`` file in each
checkpoint lets torch's own tools read it.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import (
    create_read_items_for_chunk_list,
)

from spmd.checkpoint._manifest import Manifest, Piece, TensorEntry

NAME = ".metadata"

Region = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and shape of a box."""


def read_plan(
    entry: TensorEntry, regions: Sequence[Region]
) -> dict[int, list[ReadItem]]:
    """What to take from which piece to fill regions of a tensor.

    Args:
        entry: The tensor in the checkpoint.
        regions: Boxes that are wanted.

    Returns:
        For each piece that is needed, by position, the parts of it and where they go.
    """
    chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in regions]
    items = create_read_items_for_chunk_list("", _tensor(entry), chunks)
    found: dict[int, list[ReadItem]] = {}
    for item in items:
        assert item.storage_index.index is not None
        found.setdefault(item.storage_index.index, []).append(item)
    return found


def metadata_file(manifest: Manifest) -> bytes:
    """What ``.metadata`` has to hold.

    Args:
        manifest: Of all processes.

    Returns:
        A pickle, which `torch.distributed.checkpoint.FileSystemReader` reads; we never
        do.
    """
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    stored: dict[MetadataIndex, _StorageInfo] = {}
    names = [(key, key) for key in manifest.tensors] + list(manifest.aliases.items())
    for name, key in names:
        entry = manifest.tensors[key]
        entries[name] = _tensor(entry)
        for i, piece in enumerate(entry.pieces):
            index = MetadataIndex(name, torch.Size(piece.offset), i)
            stored[index] = _info(piece)
    for key, piece in manifest.objects.items():
        entries[key] = BytesStorageMetadata()
        stored[MetadataIndex(key)] = _info(piece)
    paths = {name: tuple(name.split(".", 1)) for name in entries}
    return pickle.dumps(Metadata(entries, planner_data=paths, storage_data=stored))


def _tensor(entry: TensorEntry) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        TensorProperties(dtype=getattr(torch, entry.dtype)),
        torch.Size(entry.shape),
        [
            ChunkStorageMetadata(torch.Size(p.offset), torch.Size(p.shape))
            for p in entry.pieces
        ],
    )


def _info(piece: Piece) -> _StorageInfo:
    return _StorageInfo(piece.file, piece.at, piece.size_bytes)
