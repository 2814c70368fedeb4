"""Parameters that a model holds in pieces, under the names that they have as a whole.

A checkpoint does not know that `spmd.auto_plan` took a fused weight apart: it has the
one tensor, so that a model on another mesh, or one that is not sharded, reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._fused_state import pieces_of
from spmd.checkpoint._dcp import Region
from spmd.checkpoint._places import join, named_modules, optimizer_names
from spmd.checkpoint._read import Advance
from spmd.checkpoint._source import Kind, Source
from spmd.checkpoint._write import Box

_MODEL, _OPTIMIZER = "model.", "optimizer."


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a piece is in its whole.

    Attributes:
        whole: What the whole is called.
        dim: The dim along which it was cut.
        start: Index of the first element along it.
        shape: Of the piece.
        whole_shape: Of the whole.
    """

    whole: str
    dim: int
    start: int
    shape: tuple[int, ...]
    whole_shape: tuple[int, ...]

    def moved(self, offset: Sequence[int]) -> tuple[int, ...]:
        """An offset in the whole.

        Args:
            offset: In the piece.
        """
        return tuple(
            o + (self.start if i == self.dim else 0) for i, o in enumerate(offset)
        )


def pieces_by_name(model: nn.Module, prefix: str = "") -> dict[str, Piece]:
    """What a model holds in pieces.

    Args:
        model: Any module, wrapped or not.
        prefix: First part of the names.

    Returns:
        By the name of the piece.
    """
    found = {}
    for path, module in named_modules(model):
        for held in pieces_of(module):
            whole = join(prefix, join(path, held.name))
            total = sum(held.sizes.values())
            for name, start, _ in held.ranges():
                shape = tuple(module.get_parameter(name).shape)
                of = (*shape[: held.dim], total, *shape[held.dim + 1 :])
                piece = Piece(whole, held.dim, start, shape, of)
                found[join(prefix, join(path, name))] = piece
    return found


def saved_names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Names of the parameters of each group of an optimizer, as they are saved.

    Args:
        model: Whose names they have.
        optimizer: The optimizer.

    Returns:
        A whole once, where its first piece is.
    """
    pieces = pieces_by_name(model)
    return [
        list(dict.fromkeys(whole_name(name, pieces) for name in group))
        for group in optimizer_names(model, optimizer)
    ]


def whole_name(name: str, pieces: Mapping[str, Piece]) -> str:
    """What a parameter is called in a checkpoint.

    Args:
        name: Of a parameter, or of a piece of one.
        pieces: From `pieces_by_name`.
    """
    return pieces[name].whole if name in pieces else name


def in_wholes(boxes: Iterable[Box], pieces: Mapping[str, Piece]) -> Iterator[Box]:
    """Parts of tensors, with those of pieces as parts of the whole.

    State of an optimizer that goes number by number with a piece is a piece too, and a
    single number (a count of steps) is that of the first piece. Other state stays under
    the name of the piece.

    Args:
        boxes: Of pieces and other tensors, by their keys.
        pieces: By key.

    Yields:
        Boxes.
    """
    for box in boxes:
        found = _piece_of(box.key, pieces)
        if found is None:
            yield box
            continue
        piece, entry = found
        key = piece.whole + entry
        if box.shape == piece.shape:
            yield Box(key, piece.whole_shape, piece.moved(box.offset), box.data)
        elif box.shape:
            yield box
        elif piece.start == 0:
            yield Box(key, box.shape, box.offset, box.data)


def _piece_of(key: str, pieces: Mapping[str, Piece]) -> tuple[Piece, str] | None:
    """The piece that a key is about, and what of an optimizer's state it is."""
    if key in pieces:
        return pieces[key], ""
    if key.startswith(_OPTIMIZER):
        name, _, entry = key.removeprefix(_OPTIMIZER).rpartition(".")
        piece = pieces.get(_MODEL + name)
        if piece is not None:
            whole = _OPTIMIZER + piece.whole.removeprefix(_MODEL)
            return replace(piece, whole=whole), f".{entry}"
    return None


@final
class PiecesSource(Source):
    """A source as it looks to a model that holds parameters in pieces.

    Args:
        source: Has the wholes.
        pieces: By key.

    Attributes:
        uncut: Keys of state that does not go number by number with a whole, and is
            left out.
    """

    def __init__(self, source: Source, pieces: Mapping[str, Piece]) -> None:
        self.url = source.url
        self.num_processes = source.num_processes
        self.uncut: list[str] = []
        self._source = source
        self._pieces: dict[str, tuple[str, Piece | None]] = {}
        of: dict[str, list[tuple[str, Piece]]] = {}
        for key, piece in pieces.items():
            of.setdefault(piece.whole, []).append((key, piece))
        self._of = of
        kinds: dict[str, Kind] = {}
        for key, kind in source.kinds.items():
            for name, seen in self._seen(key, kind):
                kinds[name] = seen
        self.kinds = kinds

    def _seen(self, key: str, kind: Kind) -> Iterator[tuple[str, Kind]]:
        """What a tensor of the source is to the model."""
        name, prefix, entry = key, "", ""
        if key.startswith(_OPTIMIZER):
            name, _, entry = key.removeprefix(_OPTIMIZER).rpartition(".")
            name, prefix, entry = _MODEL + name, _OPTIMIZER, f".{entry}"
        if name not in self._of:
            yield key, kind
            return
        for own, piece in self._of[name]:
            if prefix:
                own = prefix + own.removeprefix(_MODEL) + entry
            if kind[1] == piece.whole_shape:
                self._pieces[own] = key, piece
                yield own, (kind[0], piece.shape)
            elif not prefix or not kind[1]:  # of another shape; a count of steps
                self._pieces[own] = key, None
                yield own, kind
            else:
                self.uncut.append(key)
                return

    def fill(
        self,
        key: str,
        regions: Sequence[tuple[Region, torch.Tensor]],
        *,
        advance: Advance,
    ) -> None:
        """See `Source`."""
        whole, piece = self._pieces.get(key, (key, None))
        if piece is not None:
            regions = [
                ((piece.moved(offset), shape), target)
                for (offset, shape), target in regions
            ]
        self._source.fill(whole, regions, advance=advance)

    def object(self, key: str) -> Any:
        """See `Source`; what is said of a whole is said of its pieces."""
        found = self._source.object(key)
        if key != "optimizer" or not isinstance(found, dict):
            return found
        values = dict(found["values"])
        for whole, parts in self._of.items():
            value = values.get(whole.removeprefix(_MODEL))
            if value is not None:
                names = (name.removeprefix(_MODEL) for name, _ in parts)
                values.update({name: dict(value) for name in names})
        return {**found, "values": values}

    def objects(self) -> Iterable[str]:
        """See `Source`."""
        return self._source.objects()


def seen_by(model: nn.Module, source: Source, *, prefix: str = "model") -> Source:
    """A source as a model sees it.

    Args:
        model: Any module.
        source: Has every parameter as a whole.
        prefix: First part of the model's keys there.

    Returns:
        The source itself, where the model holds nothing in pieces.
    """
    pieces = pieces_by_name(model, prefix)
    return PiecesSource(source, pieces) if pieces else source
