"""Write the pieces of one process into its file, and what they are.

A piece is stored as `torch.save` writes it, one after the other in one file, which is
the format of `torch.distributed.checkpoint`.
"""

from __future__ import annotations

import io
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

from spmd.checkpoint._folder import Folder
from spmd.checkpoint._manifest import Manifest, Piece, TensorEntry

MAX_PIECE_BYTES = 16 * 2**20
"""Larger boxes are cut along dim 0, so that a reader needs little memory at a time and
can leave out what it does not need."""

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Box:
    """Part of a tensor, on the host.

    Attributes:
        key: Of the tensor.
        shape: Of the whole.
        offset: Where the part begins.
        data: The part.
    """

    key: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    data: torch.Tensor


def write_part(
    folder: Folder,
    file: str,
    boxes: Iterable[Box],
    objects: dict[str, bytes],
    *,
    advance: Advance,
) -> Manifest:
    """Write boxes and objects into one file.

    Args:
        folder: Where to.
        file: Name of the file.
        boxes: Taken one by one, so that those to come need not exist yet.
        objects: By key, from `packed`.
        advance: Called with the number of bytes after each piece.

    Returns:
        What was written, without step and token.
    """
    pieces: defaultdict[str, list[Piece]] = defaultdict(list)
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    stored: dict[str, Piece] = {}
    with folder.create(file) as stream:
        out: Any = _Counted(stream)
        for key, data in objects.items():
            out.begin()
            out.write(data)
            stored[key] = out.piece(file)
        for box in boxes:
            kinds[box.key] = _dtype(box.data), box.shape
            for cut in _cut(box):
                out.begin()
                torch.save(_compact(cut.data), out)
                shape = tuple(cut.data.shape)
                pieces[cut.key].append(out.piece(file, cut.offset, shape))
                advance(cut.data.nbytes)
            del box
    return Manifest(
        step=None,
        num_processes=1,
        token="",
        tensors={k: TensorEntry(*kinds[k], tuple(pieces[k])) for k in kinds},
        objects=stored,
        files={file: out.at},
    )


def packed(value: Any, what: str) -> bytes:
    """An object as bytes that can be read without running code out of them.

    Args:
        value: Numbers, strings, containers and CPU tensors.
        what: What it is, for messages.

    Returns:
        What `torch.save` makes of it.

    Raises:
        TypeError: Something else inside.
    """
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
        stream.seek(0)
        torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise TypeError(
            f"save: {what} holds more than numbers, strings, containers and tensors, "
            f"which is all that can be read back without running code ({reason}). "
            f"Leave it out, or save its state_dict()"
        ) from None
    return stream.getvalue()


class _Counted(io.RawIOBase):
    """A stream that knows where it is and the checksum since `begin`.

    Args:
        stream: Where to write.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.at = 0
        self._start = 0
        self._crc32 = 0

    def begin(self) -> None:
        """A piece begins here."""
        self._start, self._crc32 = self.at, 0

    def write(self, data: Any, /) -> int:
        """Write some bytes.

        Args:
            data: Any buffer.

        Returns:
            Their number.
        """
        view = memoryview(data)
        self._stream.write(view)
        self._crc32 = zlib.crc32(view, self._crc32)
        self.at += view.nbytes
        return view.nbytes

    def writable(self) -> bool:
        """Yes."""
        return True

    def piece(
        self, file: str, offset: tuple[int, ...] = (), shape: tuple[int, ...] = ()
    ) -> Piece:
        """What was written since `begin`.

        Args:
            file: Name of the file.
            offset: See `Piece`.
            shape: See `Piece`.
        """
        size = self.at - self._start
        return Piece(offset, shape, file, self._start, size, self._crc32)


def _cut(box: Box) -> Iterator[Box]:
    """Boxes of at most `MAX_PIECE_BYTES`, if rows are no larger."""
    data = box.data
    if data.ndim == 0:
        yield box
        return
    if data.numel() == 0:
        return
    row = math.prod(data.shape[1:]) * data.element_size()
    step = max(1, MAX_PIECE_BYTES // row)
    for start in range(0, data.shape[0], step):
        offset = (box.offset[0] + start, *box.offset[1:])
        yield Box(box.key, box.shape, offset, data[start : start + step])


def _compact(data: torch.Tensor) -> torch.Tensor:
    """Without a larger storage behind it, all of which `torch.save` would write."""
    data = data.detach().resolve_conj().resolve_neg().contiguous()
    if type(data) is not torch.Tensor:
        data = data.as_subclass(torch.Tensor)
    return data if data.untyped_storage().nbytes() == data.nbytes else data.clone()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
