"""Where values come from: a checkpoint, or a file that `torch.save` wrote."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch

from spmd.checkpoint._dcp import Region
from spmd.checkpoint._error import CheckpointError
from spmd.checkpoint._folder import Folder, LocalFolder, folder_at
from spmd.checkpoint._manifest import Manifest, read_manifest
from spmd.checkpoint._read import Advance, fill_regions, read_object

Kind = tuple[str, tuple[int, ...]]
"""Torch's short name of a dtype, and a shape."""


class Source(ABC):
    """Tensors and objects by key.

    Attributes:
        url: Where they are, for messages.
        kinds: Dtype and shape of each tensor; tied ones under each of their keys.
        num_processes: How many processes wrote it.
    """

    url: str
    kinds: Mapping[str, Kind]
    num_processes: int = 1

    @abstractmethod
    def fill(
        self,
        key: str,
        regions: Sequence[tuple[Region, torch.Tensor]],
        *,
        advance: Advance,
    ) -> None:
        """Fill boxes of a tensor.

        Args:
            key: Of the tensor.
            regions: Boxes, each with a CPU tensor of its shape; the dtype may differ.
            advance: Called with the number of bytes that were read.
        """

    @abstractmethod
    def object(self, key: str) -> Any:
        """An object, or None if there is none.

        Args:
            key: Its key.
        """

    @abstractmethod
    def objects(self) -> Iterable[str]:
        """Keys of the objects."""

    def is_stack(self, key: str) -> bool:
        """Whether the first dim of a tensor is one of several tensors of the source.

        Args:
            key: Of the tensor.
        """
        return False

    def whole(self, key: str) -> torch.Tensor:
        """All of a tensor, on the host.

        Args:
            key: Its key.
        """
        dtype, shape = self.kinds[key]
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        region = (0,) * len(shape), shape
        self.fill(key, [(region, tensor)], advance=lambda _: None)
        return tensor


@final
class CheckpointSource(Source):
    """A checkpoint.

    Args:
        folder: Where it is.

    Raises:
        CheckpointError: There is none, or its manifest is damaged.
    """

    def __init__(self, folder: Folder) -> None:
        self.url = folder.url
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder)
        self.num_processes = self.manifest.num_processes
        kinds = {k: (e.dtype, e.shape) for k, e in self.manifest.tensors.items()}
        for alias, key in self.manifest.aliases.items():
            kinds[alias] = kinds[key]
        self.kinds = kinds
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Find a missing or cut off file before anything is changed."""
        for file, size in self.manifest.files.items():
            if not self.folder.exists(file):
                raise CheckpointError(f"{self.url}: the file {file} is missing")
            have = self.folder.size(file)
            if have != size:
                raise CheckpointError(
                    f"{self.url}: the file {file} has {have} bytes, {size} were written"
                )

    def fill(
        self,
        key: str,
        regions: Sequence[tuple[Region, torch.Tensor]],
        *,
        advance: Advance,
    ) -> None:
        """See `Source`."""
        entry = self.manifest.find(key)
        assert entry is not None
        fill_regions(self.folder, entry, key, regions, advance=advance)

    def object(self, key: str) -> Any:
        """See `Source`."""
        piece = self.manifest.objects.get(key)
        return None if piece is None else read_object(self.folder, piece, key)

    def objects(self) -> Iterable[str]:
        """See `Source`."""
        return self.manifest.objects


@final
class TorchFileSource(Source):
    """A file that `torch.save` wrote: a state dict, or one under ``model``.

    Its pages are mapped, so that only what is used is read. An optimizer's state in it
    goes by positions and not names, and is left out.

    Args:
        path: The file.

    Raises:
        CheckpointError: Not such a file, or one that only running its code would read.
        ValueError: No state dict inside.
    """

    def __init__(self, path: Path) -> None:
        self.url = str(path)
        try:
            held = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise CheckpointError(
                f"{path} is no file of torch.save that can be read without running "
                f"code ({reason})"
            ) from error
        self._tensors = {f"model.{k}": v for k, v in _state_dict(held, path).items()}
        self.kinds = {
            key: (str(t.dtype).removeprefix("torch."), tuple(t.shape))
            for key, t in self._tensors.items()
        }

    def fill(
        self,
        key: str,
        regions: Sequence[tuple[Region, torch.Tensor]],
        *,
        advance: Advance,
    ) -> None:
        """See `Source`."""
        tensor = self._tensors[key]
        for (offset, shape), target in regions:
            box = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
            target.copy_(tensor[box])
            advance(target.nbytes)

    def object(self, key: str) -> Any:
        """See `Source`."""
        return None

    def objects(self) -> Iterable[str]:
        """See `Source`."""
        return ()


def source_at(path: str | os.PathLike[str]) -> Source:
    """What there is at a path.

    Args:
        path: A checkpoint, or a file that `torch.save` wrote.

    Returns:
        A source.

    Raises:
        CheckpointError: Neither, or damaged.
        ValueError: A URL of an unknown protocol.
    """
    folder = folder_at(path)
    if isinstance(folder, LocalFolder) and folder.root.is_file():
        return TorchFileSource(folder.root)
    return CheckpointSource(folder)


def _state_dict(held: Any, path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a model, under whatever name people put them."""
    for name in ("model", "state_dict", "model_state_dict"):
        if isinstance(held, Mapping) and isinstance(held.get(name), Mapping):
            held = held[name]
            break
    if isinstance(held, Mapping):
        tensors = {str(k): v for k, v in held.items() if torch.is_tensor(v)}
        if tensors:
            if all(key.startswith("module.") for key in tensors):
                tensors = {k.removeprefix("module."): v for k, v in tensors.items()}
            return tensors
    raise ValueError(
        f"{path} holds no state dict: a {type(held).__name__}, not a mapping from "
        f"names to tensors, nor one with such a mapping under 'model' or 'state_dict'"
    )
