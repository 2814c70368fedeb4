"""`convert`: a checkpoint into other forms, and other forms into a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, final

import torch

from spmd.checkpoint import _manifest
from spmd.checkpoint._commit import Commit, write_and_commit
from spmd.checkpoint._dcp import Region
from spmd.checkpoint._folder import Folder, LocalFolder, folder_at, written_beside
from spmd.checkpoint._manifest import Manifest
from spmd.checkpoint._progress import progress as progress_bar
from spmd.checkpoint._read import Advance, read_piece
from spmd.checkpoint._safetensors import (
    INDEX,
    SafetensorsSource,
    num_bytes,
    plan_files,
    write_files,
)
from spmd.checkpoint._save import check_free
from spmd.checkpoint._source import CheckpointSource, Source, source_at
from spmd.checkpoint._team import Team, shared_token
from spmd.checkpoint._write import Box, write_part

Form = Literal["checkpoint", "safetensors", "torch"]
FORMS: tuple[Form, ...] = ("checkpoint", "safetensors", "torch")
_MODEL = "model."


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: Form | None = None,
    progress: bool | None = None,
) -> Form:
    """Rewrite a checkpoint, a `torch.save` file or a safetensors folder as another.

    A checkpoint keeps everything when it becomes another (on another file system,
    say); all other forms hold the model only. One tensor is in memory at a time, but
    for a `torch.save` file, which is made of all at once. Names stay as they are: to
    restore those of a transformers model use `export_hf`.

    Args:
        source: A path or URL; files of `torch.save` must be local.
        destination: A path or URL that does not exist yet.
        to: ``"checkpoint"``, ``"safetensors"`` or ``"torch"``. Default: ``"torch"`` for
            a destination that ends in .pt, .pth or .bin, else safetensors for a
            checkpoint and a checkpoint for the others.
        progress: Show a bar: always, never, or (None) on a terminal if it takes long.

    Returns:
        The form that was written.

    Raises:
        CheckpointError: A source that is none of these, or damaged; or the result
            could not be written.
        ValueError: A destination that exists, or a form that there is not.
    """
    if to not in (None, *FORMS):
        raise ValueError(f"convert: to={to!r}; {', '.join(FORMS)} are allowed")
    found = _source(source)
    form: Form = to or _form(found, os.fspath(destination))
    target = folder_at(destination)
    total = sum(map(num_bytes, found.kinds.values()))
    with progress_bar(f"writing {target.url}", total, progress) as advance:
        if form == "torch":
            _to_torch(found, target, advance)
        elif form == "safetensors":
            _to_safetensors(found, target, advance)
        else:
            _to_checkpoint(found, target, advance)
    return form


def _source(path: str | os.PathLike[str]) -> Source:
    folder = folder_at(path)
    names = folder.names()
    if _manifest.NAME not in names and any(n.endswith(".safetensors") for n in names):
        return _Prefixed(SafetensorsSource(folder))
    return source_at(path)


def _form(source: Source, destination: str) -> Form:
    if destination.endswith((".pt", ".pth", ".bin")):
        return "torch"
    return "safetensors" if isinstance(source, CheckpointSource) else "checkpoint"


def _to_checkpoint(source: Source, target: Folder, advance: Advance) -> None:
    check_free(target, overwrite=False)
    step, aliases, objects, num = None, {}, {}, 1
    if isinstance(source, CheckpointSource):
        manifest = source.manifest
        step, aliases, num = manifest.step, dict(manifest.aliases), source.num_processes
        for key, piece in manifest.objects.items():
            objects[key] = read_piece(source.folder, piece, key)
    keys = [key for key in source.kinds if key not in aliases]

    def boxes() -> Iterator[Box]:
        for key in keys:
            shape = source.kinds[key][1]
            yield Box(key, shape, (0,) * len(shape), source.whole(key))

    def write(folder: Folder, file: str) -> Manifest:
        return write_part(folder, file, boxes(), objects, advance=advance)

    job = Commit(target, shared_token(Team()), Team(), step, aliases, num_processes=num)
    write_and_commit(job, write)


def _to_safetensors(source: Source, target: Folder, advance: Advance) -> None:
    if target.names():
        raise ValueError(f"convert: {target.url} has files in it; give another path")
    keys = _model_keys(source)
    kinds = {key.removeprefix(_MODEL): source.kinds[key] for key in keys}
    files, index = plan_files(kinds)
    with written_beside(target, shared_token(Team())) as folder:
        write_files(
            folder, files, lambda name: source.whole(_MODEL + name), advance=advance
        )
        if index is not None:
            folder.replace(INDEX, index)


def _to_torch(source: Source, target: Folder, advance: Advance) -> None:
    if not isinstance(target, LocalFolder):
        raise ValueError(f"convert: {target.url}: a file of torch.save must be local")
    path = target.root
    if path.exists():
        raise ValueError(f"convert: {path} exists already; give another path")
    weights = {}
    for key in _model_keys(source):
        weights[key.removeprefix(_MODEL)] = source.whole(key)
        advance(num_bytes(source.kinds[key]))
    held: dict[str, Any] = {"model": weights}
    if isinstance(source, CheckpointSource) and source.manifest.step is not None:
        held["step"] = source.manifest.step
    beside = LocalFolder(Path(path.parent))
    beside.root.mkdir(parents=True, exist_ok=True)
    with beside.create(f"{path.name}.new") as stream:
        torch.save(held, stream)
    os.replace(beside.root / f"{path.name}.new", path)


def _model_keys(source: Source) -> list[str]:
    """Keys of the model's tensors, tied ones once."""
    aliases = source.manifest.aliases if isinstance(source, CheckpointSource) else {}
    return [k for k in source.kinds if k.startswith(_MODEL) and k not in aliases]


@final
class _Prefixed(Source):
    """A source of a model's tensors, under the keys that checkpoints have."""

    def __init__(self, inner: Source) -> None:
        self.url = inner.url
        self._inner = inner
        self.kinds = {_MODEL + k: v for k, v in inner.kinds.items()}

    def fill(
        self,
        key: str,
        regions: Sequence[tuple[Region, torch.Tensor]],
        *,
        advance: Advance,
    ) -> None:
        """See `Source`."""
        self._inner.fill(key.removeprefix(_MODEL), regions, advance=advance)

    def object(self, key: str) -> Any:
        """See `Source`."""
        return None

    def objects(self) -> Iterable[str]:
        """See `Source`."""
        return ()
