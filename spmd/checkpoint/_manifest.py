"""`Manifest`: what a checkpoint holds, where each piece is, and how to check it.

It is written last: a folder without one holds no checkpoint. It is JSON, so reading it
runs nothing and needs no torch.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spmd.checkpoint._error import CheckpointError
from spmd.checkpoint._folder import Folder

NAME = "manifest.json"
FORMAT = "spmd-checkpoint"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor, or an object, as `torch.save` writes it, inside a file.

    Attributes:
        offset: Where the box begins in the whole; empty for an object.
        shape: Its shape; empty for an object.
        file: Name of the file.
        at: Where it begins in the file.
        size_bytes: How long it is there.
        crc32: Checksum of these bytes: against damage, not against forgery.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    at: int
    size_bytes: int
    crc32: int

    def describe(self) -> str:
        """Such as ``piece [0:4, 8:16] (bytes 0 to 1520 of a.distcp)``."""
        box = ", ".join(
            f"{start}:{start + size}"
            for start, size in zip(self.offset, self.shape, strict=True)
        )
        where = f"bytes {self.at} to {self.at + self.size_bytes} of {self.file}"
        return f"piece [{box}] ({where})" if self.shape else where


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor.

    Attributes:
        dtype: Torch's short name.
        shape: Of the whole.
        pieces: They cover it, each element once.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds.

    Attributes:
        step: The training step, or None.
        num_processes: How many wrote it.
        token: Unlike that of any other save.
        tensors: By key, such as ``model.layers.0.weight``.
        objects: Anything else by key, such as ``scheduler``.
        aliases: Further keys of tensors that are tied, and the key they are under.
        files: Size of each file.
        written: When, and by which versions.
    """

    step: int | None
    num_processes: int
    token: str
    tensors: Mapping[str, TensorEntry]
    objects: Mapping[str, Piece]
    aliases: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())

    def find(self, key: str) -> TensorEntry | None:
        """A tensor by any of its keys.

        Args:
            key: Such as ``model.layers.0.weight``.
        """
        return self.tensors.get(self.aliases.get(key, key))

    def to_json(self) -> str:
        """As text, with a checksum of its own."""
        body = dataclasses.asdict(self)
        text = _canonical(body)
        return json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "crc32": zlib.crc32(text.encode()),
                "body": body,
            },
            indent=0,
        )

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str) -> Manifest:
        """Read the text again.

        Args:
            text: From `to_json`.
            where: Name of the file, for messages.

        Returns:
            The manifest.

        Raises:
            CheckpointError: Damaged text, or a format that this version cannot read.
        """
        try:
            outer = json.loads(text)
            body, crc32 = outer["body"], outer["crc32"]
            name, version = outer["format"], outer["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{where} is damaged: {error}") from None
        if (name, version) != (FORMAT, VERSION):
            raise CheckpointError(
                f"{where} is of format {name!r} version {version!r}; this version of "
                f"spmd reads {FORMAT!r} version {VERSION}"
            )
        if zlib.crc32(_canonical(body).encode()) != crc32:
            raise CheckpointError(f"{where} is damaged: its checksum does not match")
        return cls(
            **{
                **body,
                "tensors": {k: _entry(v) for k, v in body["tensors"].items()},
                "objects": {k: _piece(v) for k, v in body["objects"].items()},
            }
        )


def read_manifest(folder: Folder) -> Manifest:
    """The manifest of a checkpoint.

    Args:
        folder: Where it is.

    Returns:
        The manifest.

    Raises:
        CheckpointError: There is none, or a damaged one.
    """
    where = f"{folder.url}/{NAME}"
    try:
        text = folder.read(NAME)
    except (FileNotFoundError, NotADirectoryError):
        there = folder.names()
        what = f"it has {', '.join(there[:4])}" if there else "it is empty or missing"
        raise CheckpointError(
            f"{folder.url} holds no complete checkpoint: there is no {NAME} ({what}). "
            f"Its writing did not end, or the path is another one"
        ) from None
    return Manifest.from_json(text, where=where)


def merged(parts: Iterable[Manifest]) -> Manifest:
    """One manifest out of what each process wrote.

    Args:
        parts: One for each process, in order.

    Returns:
        The manifest.

    Raises:
        CheckpointError: Processes that disagree about a tensor, or pieces that do not
            cover one.
    """
    first, *others = parts
    tensors = dict(first.tensors)
    objects, files = dict(first.objects), dict(first.files)
    for process, part in enumerate(others, start=1):
        for key, entry in part.tensors.items():
            ours = tensors.setdefault(key, dataclasses.replace(entry, pieces=()))
            if (ours.dtype, ours.shape) != (entry.dtype, entry.shape):
                raise CheckpointError(
                    f"{key} is {ours.dtype}{list(ours.shape)} in process 0 and "
                    f"{entry.dtype}{list(entry.shape)} in process {process}; every "
                    f"process must save the same model"
                )
            pieces = ours.pieces + entry.pieces
            tensors[key] = dataclasses.replace(ours, pieces=pieces)
        objects.update(part.objects)
        files.update(part.files)
    for key, entry in tensors.items():
        _check_covered(key, entry)
    return dataclasses.replace(first, tensors=tensors, objects=objects, files=files)


def _check_covered(key: str, entry: TensorEntry) -> None:
    """Pieces come from shards, which do not overlap: counting elements is enough."""
    have = sum(_size(piece.shape) for piece in entry.pieces)
    need = _size(entry.shape)
    if have != need or len({p.offset for p in entry.pieces}) != len(entry.pieces):
        raise CheckpointError(
            f"{key} {list(entry.shape)} has {need} elements, its pieces {have}; did "
            f"every process call save, with the same model?"
        )


def _size(shape: Iterable[int]) -> int:
    size = 1
    for dim in shape:
        size *= dim
    return size


def _entry(body: Mapping[str, Any]) -> TensorEntry:
    pieces = tuple(map(_piece, body["pieces"]))
    return TensorEntry(body["dtype"], tuple(body["shape"]), pieces)


def _piece(body: Mapping[str, Any]) -> Piece:
    offset, shape = tuple(body["offset"]), tuple(body["shape"])
    return Piece(**{**body, "offset": offset, "shape": shape})


def _canonical(body: Any) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))
