"""`from_hf`: weights in the form of transformers, straight into shards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, final

import torch
from torch import nn

from spmd._host_spans import CHECKPOINT, spanned
from spmd._marking.mark import get_sharding, mark_sharding
from spmd._meshes.mesh import Mesh
from spmd._plans.module import shard_module, to_device
from spmd._plans.plan import Plan
from spmd.checkpoint import _background, _jax_values
from spmd.checkpoint._dcp import Region
from spmd.checkpoint._fill import fill_place, target_device
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._hf_names import Group, to_model, unwrapped
from spmd.checkpoint._match import matched
from spmd.checkpoint._parts import Holdings, holdings_of, names_of
from spmd.checkpoint._parts_source import PartsSource
from spmd.checkpoint._places import Place, Places, model_places
from spmd.checkpoint._progress import progress as progress_bar
from spmd.checkpoint._promised import keep_on_use
from spmd.checkpoint._read import Advance
from spmd.checkpoint._safetensors import SafetensorsSource, num_bytes
from spmd.checkpoint._source import Kind, Source

M = TypeVar("M", bound=nn.Module)


@spanned(CHECKPOINT)
def from_hf(
    path: str | os.PathLike[str],
    model: M,
    mesh: Mesh | None = None,
    *,
    plan: Plan | None = None,
    strict: bool = True,
    progress: bool | None = None,
) -> M:
    """Load a folder of safetensors files into a model, in place.

    Each device gets its slices of the files; the host holds one weight's at a time (of
    a weight that transformers fuses from several: all of them). A model that was built
    under `spmd.meta_parameters` never has all its weights in the host's memory.

    Args:
        path: A local folder such as ``save_pretrained`` writes, or an fsspec URL.
        model: On any device or on meta, wrapped or not, annotated or not.
        mesh: What to split over, for parameters that are not annotated yet.
        plan: How; without one they are kept whole on every device of the mesh.
        strict: Refuse weights that are missing, and those the model does not have.
        progress: Show a bar: always, never, or (None) on a terminal if it takes long.

    Returns:
        The same model.

    Raises:
        CheckpointError: No safetensors files, or damaged ones.
        ValueError: Names or shapes that do not match; a plan without a mesh, or one
            that does not fit.
    """
    _background.settle()
    if plan is not None and mesh is None:
        raise ValueError("from_hf: a plan needs a mesh; give both")
    source = SafetensorsSource(folder_at(path))
    inner = unwrapped(model)
    groups = to_model(inner, source.kinds)
    if mesh is not None:
        _jax_values.bring_back(model)
        _annotate(model, mesh, plan)
    converted = _Converted(source, groups)
    places, holdings = Places.of(model_places(model, "")), holdings_of(model)
    kinds = converted.kinds
    found = matched(places, holdings, kinds, where=source.url, strict=strict).found
    weights = PartsSource(converted, holdings, found)
    if weights.partly:
        _jax_values.bring_back(model)
    weights.keep(model, places.first)
    elsewhere = _jax_values.refills(model)
    device = target_device(place.read() for place in places.first)
    total = sum(map(num_bytes, source.kinds.values()))
    with progress_bar(f"loading {source.url}", total, progress) as advance:
        order = {key: i for i, key in enumerate(kinds)}
        turns = {name: order[key] for name, key in found.items()}
        for place in _in_groups(places, holdings, turns):
            fill_place(
                place, weights, device=device, elsewhere=elsewhere, advance=advance
            )
    keep_on_use(model)
    return to_device(model) if device == "xla" and not elsewhere else model


def _annotate(model: nn.Module, mesh: Mesh, plan: Plan | None) -> None:
    if not any(p.device.type == "meta" for p in model.parameters()):
        to_device(model)
    if plan is not None:
        shard_module(model, mesh, plan)
    for name, parameter in model.named_parameters():
        if get_sharding(parameter) is None:
            whole = (None,) * parameter.ndim
            mark_sharding(parameter, mesh, whole, name=name)


def _in_groups(
    places: Places, holdings: Holdings, turns: Mapping[str, int]
) -> list[Place]:
    """Places in the order in which the files have them: a group's one after another.

    Args:
        places: Of the model.
        holdings: What of them is held otherwise.
        turns: Where the files have each saved tensor; those that they lack are missing.
    """
    found = {}
    for place in places.first:
        known = [turns[n] for n in names_of(place.key, holdings) if n in turns]
        if known:
            found[min(known), place.key] = place
    return [found[key] for key in sorted(found)]


@final
class _Converted(Source):
    """Weights of files under the names that a model has for them."""

    def __init__(self, source: SafetensorsSource, groups: Sequence[Group]) -> None:
        self.url = source.url
        self._source = source
        self._renamed = {g.renamed: g.names[0] for g in groups if g.convert is None}
        kinds: dict[str, Kind] = {k: source.kinds[n] for k, n in self._renamed.items()}
        self._group_of: dict[str, Group] = {}
        self._made: dict[str, torch.Tensor] = {}
        self._last = "", torch.empty(0)
        for group in groups:
            if group.convert is not None:
                hollow = {n: _hollow(source.kinds[n]) for n in group.names}
                for key, tensor in group.convert(hollow).items():
                    self._group_of[key] = group
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    kinds[key] = dtype, tuple(tensor.shape)
        self.kinds = kinds

    def fill(
        self,
        key: str,
        regions: Sequence[tuple[Region, torch.Tensor]],
        *,
        advance: Advance,
    ) -> None:
        """See `Source`."""
        if key in self._renamed:
            self._source.fill(self._renamed[key], regions, advance=advance)
            return
        tensor = self._fused(key)
        for (offset, shape), target in regions:
            box = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
            target.copy_(tensor[box])
            advance(target.nbytes)

    def _fused(self, key: str) -> torch.Tensor:
        if self._last[0] == key:  # another piece of it
            return self._last[1]
        self._last = "", torch.empty(0)
        if key not in self._made:
            group = self._group_of[key]
            assert group.convert is not None
            whole = {name: self._source.whole(name) for name in group.names}
            self._made = group.convert(whole)
        self._last = key, self._made.pop(key)
        return self._last[1]

    def object(self, key: str) -> Any:
        """See `Source`."""
        return None

    def objects(self) -> Iterable[str]:
        """See `Source`."""
        return ()


def _hollow(kind: Kind) -> torch.Tensor:
    return torch.empty(kind[1], dtype=getattr(torch, kind[0]), device="meta")
