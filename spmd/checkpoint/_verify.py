"""Check every piece of a checkpoint; needs no torch."""

from __future__ import annotations

import os
import zlib

from spmd.checkpoint._error import CheckpointError
from spmd.checkpoint._folder import Folder, folder_at
from spmd.checkpoint._manifest import Manifest, Piece, read_manifest
from spmd.checkpoint._progress import progress as progress_bar


def verify(path: str | os.PathLike[str], *, progress: bool | None = None) -> list[str]:
    """Read all of a checkpoint and compare sizes and checksums.

    Args:
        path: The checkpoint, a folder or fsspec URL.
        progress: Show a bar: always, never, or (None) on a terminal if it takes long.

    Returns:
        What is wrong, a line for each file or piece; empty for a good one.

    Raises:
        ValueError: A URL of an unknown protocol.
    """
    folder = folder_at(path)
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return [str(error)]
    found = []
    with progress_bar(
        f"verifying {folder.url}", manifest.num_bytes, progress
    ) as advance:
        for file, size in manifest.files.items():
            if not folder.exists(file):
                found.append(f"{file} is missing")
                continue
            have = folder.size(file)
            if have != size:
                found.append(f"{file} has {have} bytes, {size} were written")
        for key, piece in pieces(manifest):
            if folder.exists(piece.file) and not _is_good(folder, piece):
                found.append(f"{key}, {piece.describe()}: damaged or cut off")
            advance(piece.size_bytes)
    return found


def pieces(manifest: Manifest) -> list[tuple[str, Piece]]:
    """Every piece with the key of what it belongs to.

    Args:
        manifest: Of a checkpoint.
    """
    of_tensors = [(k, p) for k, e in manifest.tensors.items() for p in e.pieces]
    return of_tensors + list(manifest.objects.items())


def _is_good(folder: Folder, piece: Piece) -> bool:
    data = folder.read(piece.file, at=piece.at, size=piece.size_bytes)
    return len(data) == piece.size_bytes and zlib.crc32(data) == piece.crc32
