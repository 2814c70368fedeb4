"""`export_hf`: a folder that `from_pretrained` of transformers loads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from spmd._host_spans import CHECKPOINT, spanned
from spmd._runtime import runtime
from spmd.checkpoint import _background, _jax_values
from spmd.checkpoint._folder import Folder, folder_at
from spmd.checkpoint._hf_names import Group, tied_targets, to_files, unwrapped
from spmd.checkpoint._parts import Part, holdings_of, saved_aliases
from spmd.checkpoint._places import Places, model_places
from spmd.checkpoint._progress import progress as progress_bar
from spmd.checkpoint._promised import promised_values
from spmd.checkpoint._safetensors import (
    INDEX,
    MAX_FILE_BYTES,
    num_bytes,
    plan_files,
)
from spmd.checkpoint._shards import boxes
from spmd.checkpoint._source import Kind
from spmd.checkpoint._team import Team, all_agree, current_team
from spmd.checkpoint._together import write_share, write_together


@spanned(CHECKPOINT)
def export_hf(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
    progress: bool | None = None,
) -> None:
    """Write a model's weights as safetensors files, with an index and its config.

    Names and order are those of the files transformers writes: weights that it fuses in
    the model are taken apart again, and tied ones are written once. The host holds one
    weight at a time (of a fused one: all of what it is made of).

    In a run of several processes every one calls this, with the same path in a folder
    that all of them see; they share out the files. So does a weight that is split over
    them: each process has all of it for a moment.

    Args:
        path: A folder that does not exist yet, or an fsspec URL.
        model: On any device, wrapped or not; its ``config`` is written if it has one.
        max_file_bytes: Largest size of a file.
        progress: Show a bar: always, never, or (None) on a terminal if it takes long.

    Raises:
        CheckpointError: It could not be written.
        ValueError: A path that exists, a dtype that safetensors does not have, or
            several processes of torch_xla's runtime.
    """
    _background.settle()
    team = current_team()
    if team.count > 1 and runtime() != "jax":
        raise ValueError(
            f"export_hf: this run has {team.count} processes of torch_xla, which "
            f"cannot put a weight together. Save a checkpoint, load it in one process, "
            f"on the CPU if need be, and export there"
        )
    target = folder_at(path)
    if not all_agree(team, not target.names()):
        raise ValueError(f"export_hf: {target.url} has files in it; give another path")
    weights = _Weights(model, team)
    files, index = plan_files(weights.kinds, max_bytes=max_file_bytes)
    total = sum(map(num_bytes, weights.kinds.values()))

    def write(folder: Folder) -> OSError | None:
        show = progress if team.index == 0 else False
        with progress_bar(f"exporting {target.url}", total, show) as advance:
            return write_share(folder, files, weights.tensor, team, advance=advance)

    def finish(folder: Folder) -> None:
        if index is not None:
            folder.replace(INDEX, index)
        for name, data in _configs(unwrapped(model)).items():
            folder.replace(name, data)

    write_together(target, team, write, finish)


@final
class _Weights:
    """The weights of a model under the names that files have."""

    def __init__(self, model: nn.Module, team: Team) -> None:
        places = Places.of(model_places(model, ""))
        inner = unwrapped(model)
        left_out, holdings = tied_targets(inner), holdings_of(model)
        aliases = saved_aliases(places.aliases, holdings)
        self._parts: dict[str, list[tuple[torch.Tensor, Part | None]]] = {}
        self._tensors: dict[str, torch.Tensor] = {}  # hollow where it is in parts
        held = [place.read() for place in places.first]
        for place, tensor in zip(places.first, held, strict=True):
            holding = holdings.get(place.key)
            for part in [None] if holding is None else holding.parts:
                name = place.key if part is None else part.saved
                names = [name, *(a for a, k in aliases.items() if k == name)]
                kept = next((n for n in names if n not in left_out), name)
                self._parts.setdefault(kept, []).append((tensor, part))
                self._tensors[kept] = tensor if part is None else _hollow(tensor, part)
        several = team.count > 1
        values = _jax_values.gathered if several else _jax_values.elsewhere
        promised = promised_values(held, whole=several)
        self._elsewhere = {**promised, **values(model)}
        if any(t.device.type == "xla" for t in held):
            from spmd._torch_xla import graph as torch_xla_graph

            torch_xla_graph.settle(wait_for_it=True)
        self.kinds: dict[str, Kind] = {}
        self._made: dict[str, torch.Tensor] = {}
        self._group_of: dict[str, Group] = {}
        for group in to_files(inner, self._tensors):
            hollow = {
                n: torch.empty_like(self._tensors[n], device="meta")
                for n in group.names
            }
            for name, tensor in _converted(group, hollow).items():
                self._group_of[name] = group
                dtype = str(tensor.dtype).removeprefix("torch.")
                self.kinds[name] = dtype, tuple(tensor.shape)

    def tensor(self, name: str) -> torch.Tensor:
        """One weight, on the host."""
        if name not in self._made:
            group = self._group_of[name]
            self._made = _converted(group, {n: self._whole(n) for n in group.names})
        return self._made.pop(name)

    def _whole(self, name: str) -> torch.Tensor:
        parts = self._parts[name]
        first, whole = parts[0][1], None
        for tensor, part in parts:
            value = self._one(name, tensor, None if part is None else part.row)
            if first is None or tuple(value.shape) == first.saved_shape:
                return value
            assert part is not None
            if whole is None:
                whole = torch.empty(first.saved_shape, dtype=value.dtype)
            _put(whole, part.start, value)
        assert whole is not None
        return whole

    def _one(self, name: str, tensor: torch.Tensor, row: int | None) -> torch.Tensor:
        """A held tensor, or one row of it, on the host."""
        read = self._elsewhere.get(id(tensor))
        whole = None
        for box in boxes(name, tensor, Team(), read=read, row=row):
            if tuple(box.data.shape) == box.shape:
                return box.data
            if whole is None:
                whole = torch.empty(box.shape, dtype=box.data.dtype)
            _put(whole, box.offset, box.data)
        if whole is None:
            shape = tensor.shape if row is None else tensor.shape[1:]
            return torch.empty(shape, dtype=tensor.dtype)
        return whole


def _hollow(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    return torch.empty(part.saved_shape, dtype=tensor.dtype, device="meta")


def _put(whole: torch.Tensor, offset: Sequence[int], data: torch.Tensor) -> None:
    ends = zip(offset, data.shape, strict=True)
    whole[tuple(slice(o, o + n) for o, n in ends)] = data


def _converted(
    group: Group, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    if group.convert is None:
        return {group.renamed: tensors[group.names[0]]}
    return group.convert(tensors)


def _configs(model: nn.Module) -> dict[str, bytes]:
    """Files that say what the model is."""
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(config, "save_pretrained"):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        before = config.architectures, getattr(config, "dtype", None)
        config.architectures = [type(model).__name__]
        config.dtype = next(iter(model.parameters())).dtype
        try:
            config.save_pretrained(folder)
        finally:
            config.architectures, config.dtype = before
        generation: Any = getattr(model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(folder)
        return {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}
