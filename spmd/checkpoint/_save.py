"""`save`: write a training, each device's pieces once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd import _random_state
from spmd._host_spans import CHECKPOINT, spanned
from spmd.checkpoint import _background, _jax_values, _manifest
from spmd.checkpoint._background import Saving, WhenBusy
from spmd.checkpoint._commit import Commit, write_and_commit
from spmd.checkpoint._folder import Folder, folder_at
from spmd.checkpoint._manifest import Manifest
from spmd.checkpoint._objects import extra_object, optimizer_object, state_of
from spmd.checkpoint._parts import Holding, all_holdings, as_saved, saved_aliases
from spmd.checkpoint._places import (
    Places,
    extra_places,
    model_places,
    optimizer_places,
)
from spmd.checkpoint._progress import progress as progress_bar
from spmd.checkpoint._promised import promised_values
from spmd.checkpoint._shards import Reader, boxes
from spmd.checkpoint._team import Team, current_team, shared_token
from spmd.checkpoint._write import Advance, Box, packed, write_part


@spanned(CHECKPOINT)
def save(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    step: int | None = None,
    scheduler: Any = None,
    loader: Any = None,
    extra: Mapping[str, Any] | None = None,
    asynchronous: bool = False,
    when_busy: WhenBusy = "wait",
    overwrite: bool = False,
    progress: bool | None = None,
) -> Saving:
    """Write a checkpoint: complete when it is there, absent otherwise.

    Each device's pieces are written once, whatever the mesh. Keys are those of the
    unwrapped model. The random generators of the process and the devices are in it
    too. In a run of several processes every one calls this, with the same path in a
    folder that all of them see.

    Args:
        path: A folder that does not exist yet, or an fsspec URL.
        model: On any device, wrapped or not.
        optimizer: Its optimizer.
        step: The step that was just done.
        scheduler: A learning-rate scheduler, or several in a list or mapping.
        loader: A `spmd.ShardedLoader`, or anything with ``state_dict()``.
        extra: More by name: modules, anything with ``state_dict()``, tensors, and
            containers of tensors, numbers and strings.
        asynchronous: Return once the values are on the host, and write in the
            background. The host then holds the pieces of its devices for a while.
        when_busy: If the last asynchronous save has not ended: ``"wait"`` for it, or
            ``"refuse"`` this one.
        overwrite: Replace a checkpoint there. The old one is good until the new is.
        progress: Show a bar: always, never, or (None) on a terminal if it takes long.

    Returns:
        The save: ``wait()`` for it, or ask whether it is ``done``.

    Raises:
        CheckpointError: It could not be written, or an earlier asynchronous save could
            not, or that is still going on and `when_busy` is ``"refuse"``.
        TypeError: Something in `extra`, or in a state, that cannot be saved.
        ValueError: A path that exists, an unknown protocol, a wrong `when_busy`.

    Example::

        spmd.checkpoint.save("runs/a/100", model, optimizer, step=100)
    """
    _background.settle(when_busy)
    target = folder_at(path)
    team = current_team()
    check_free(target, overwrite=overwrite)
    snapshot = _snapshot(model, optimizer, extra or {}, team)
    things = _things(model, optimizer, scheduler, loader, extra, team, step)
    job = Commit(target, shared_token(team), team, step, snapshot.aliases)

    def write(parts: Iterable[Box], advance: Advance) -> None:
        def part(folder: Folder, file: str) -> Manifest:
            return write_part(folder, file, parts, things, advance=advance)

        write_and_commit(job, part)

    if asynchronous:
        staged = deque(snapshot.boxes(copy=True))
        return _background.begin(
            target.url, lambda: write(_taken(staged), lambda _: None)
        )
    show = progress if team.index == 0 else False
    with progress_bar(f"saving {target.url}", snapshot.num_bytes, show) as advance:
        write(snapshot.boxes(), advance)
    return Saving(target.url)


def check_free(target: Folder, *, overwrite: bool) -> None:
    """Refuse a folder that holds something else.

    Args:
        target: The folder.
        overwrite: Whether it may hold a checkpoint.

    Raises:
        ValueError: It holds a checkpoint, or other files.
    """
    names = target.names()
    if _manifest.NAME in names and not overwrite:
        raise ValueError(
            f"save: {target.url} holds a checkpoint already; give another path, or "
            f"overwrite=True"
        )
    strange = [n for n in names if not n.endswith((".distcp", ".part", ".failed"))]
    if _manifest.NAME not in names and strange:
        raise ValueError(
            f"save: {target.url} holds other files ({', '.join(strange[:4])}); give a "
            f"path that does not exist yet"
        )


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The tensors to write."""

    found: list[tuple[str, torch.Tensor]]
    elsewhere: dict[int, Reader]
    aliases: dict[str, str]
    holdings: dict[str, Holding]
    team: Team

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for _, t in self.found) // (
            self.team.count
        )

    def boxes(self, *, copy: bool = False) -> Iterator[Box]:
        return as_saved(self._boxes(copy=copy), self.holdings)

    def _boxes(self, *, copy: bool) -> Iterator[Box]:
        for key, tensor in self.found:
            read = self.elsewhere.get(id(tensor))
            yield from boxes(key, tensor, self.team, read=read, copy=copy)


def _snapshot(
    model: nn.Module,
    optimizer: Optimizer | None,
    extra: Mapping[str, Any],
    team: Team,
) -> _Snapshot:
    modules = [value for value in extra.values() if isinstance(value, nn.Module)]
    elsewhere = _jax_values.elsewhere(model, *modules)

    def all_places() -> Iterator[Any]:
        yield from model_places(model)
        if optimizer is not None:
            yield from optimizer_places(model, optimizer)
        yield from extra_places(extra)

    places = Places.of(all_places())
    found = [(place.key, place.read()) for place in places.first]
    elsewhere = {**promised_values(t for _, t in found), **elsewhere}
    for key, tensor in found:
        if tensor.device.type == "meta" and id(tensor) not in elsewhere:
            raise ValueError(
                f"save: {key} {list(tensor.shape)} is on the meta device and has no "
                f"values to save; load a checkpoint or call fsdpv2.materialize first"
            )
    if any(tensor.device.type == "xla" for _, tensor in found):
        from spmd._torch_xla import graph as torch_xla_graph

        torch_xla_graph.settle(wait_for_it=True)
    holdings = all_holdings(model, extra)
    aliases = saved_aliases(places.aliases, holdings)
    return _Snapshot(found, elsewhere, aliases, holdings, team)


def _things(
    model: nn.Module,
    optimizer: Optimizer | None,
    scheduler: Any,
    loader: Any,
    extra: Mapping[str, Any] | None,
    team: Team,
    step: int | None,
) -> dict[str, bytes]:
    """What is no large tensor, by key."""
    mine = f"process.{team.index}"
    found: dict[str, Callable[[], Any]] = {f"{mine}.random": lambda: _random(model)}
    if loader is not None:
        found[f"{mine}.loader"] = lambda: state_of(loader)
    if team.index == 0:
        if step is not None:
            found["step"] = lambda: step
        if optimizer is not None:
            found["optimizer"] = lambda: optimizer_object(model, optimizer)
        if scheduler is not None:
            found["scheduler"] = lambda: state_of(scheduler)
        for name, value in extra_object(extra or {}).items():
            found[f"extra.{name}"] = lambda value=value: value
    return {key: packed(make(), key) for key, make in found.items()}


def _random(model: nn.Module) -> dict[str, Any]:
    state = _random_state.all_states()
    seed = _jax_values.seed(model)
    return state if seed is None else {**state, "devices": seed}


def _taken(staged: deque[Box]) -> Iterator[Box]:
    """Boxes, each let go of once it is written."""
    while staged:
        yield staged.popleft()
