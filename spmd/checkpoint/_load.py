"""`load`: give a training the values of a checkpoint, whatever mesh wrote it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd import _random_state
from spmd._host_spans import CHECKPOINT, spanned
from spmd._names.tree import named_leaves
from spmd._plans.module import to_device
from spmd.checkpoint import _background, _jax_values
from spmd.checkpoint._fill import fill_place, target_device
from spmd.checkpoint._jax_values import Refill
from spmd.checkpoint._load_optimizer import (
    check_optimizer,
    keeps_its_state,
    load_optimizer,
)
from spmd.checkpoint._match import matched
from spmd.checkpoint._objects import ABSENT, has_state, set_state_of
from spmd.checkpoint._parts import all_holdings
from spmd.checkpoint._parts_source import PartsSource
from spmd.checkpoint._places import Places, extra_places, join, model_places
from spmd.checkpoint._progress import progress as progress_bar
from spmd.checkpoint._promised import keep_on_use
from spmd.checkpoint._read import Advance
from spmd.checkpoint._source import Kind, Source, source_at
from spmd.checkpoint._team import current_team


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded.

    Attributes:
        path: Where from.
        step: The step it was saved after, or None.
        extra: What was saved as `extra`; what was filled in place is left out.
        missing: Keys of the model that the checkpoint does not have (`strict=False`).
        unexpected: Keys of the checkpoint that the model does not have.
    """

    path: str
    step: int | None
    extra: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


@spanned(CHECKPOINT)
def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    scheduler: Any = None,
    loader: Any = None,
    extra: Mapping[str, Any] | None = None,
    strict: bool = True,
    assign: bool = False,
    random: bool = True,
    progress: bool | None = None,
) -> Loaded:
    """Give a model, and what trains it, the values of a checkpoint.

    Every tensor stays on its device and split as it is, on whatever mesh that is; the
    host holds one tensor's pieces at a time. A model on the meta device gets its
    values where its annotations say. With ``spmd.init(runtime="jax")`` they and the
    optimizer's moments go straight into jax's devices; the tensors stay on meta until a
    step takes the values over, or something outside a step asks for them. An optimizer
    may be new: its state is created split as its parameters are. Keys and shapes are
    compared before anything changes.

    A checkpoint has each layer's own tensors, also where the model holds those of equal
    layers stacked (``scan_layers=True``). Such a stack is one tensor; into jax's
    devices that of a model on meta goes layer by layer. Of the optimizer it has one
    count of steps for all layers, so those of the checkpoint have to be equal.

    Args:
        path: A checkpoint (a folder or fsspec URL), or a file that `torch.save` wrote,
            of which only the model is taken.
        model: On any device, wrapped or not.
        optimizer: Its optimizer, of the same class and with the same groups.
        scheduler: As it was given to `save`.
        loader: As it was given to `save`: it goes on where it was.
        extra: Modules, things with ``load_state_dict()`` and tensors to fill, by the
            names they were saved under.
        strict: Refuse keys of the model that are missing, and keys it does not have.
        assign: Take the checkpoint's dtypes, instead of converting.
        random: Put the random generators into the saved state.
        progress: Show a bar: always, never, or (None) on a terminal if it takes long.

    Returns:
        The step, and what was saved as `extra`.

    Raises:
        CheckpointError: No complete checkpoint there, or a damaged, cut off or missing
            piece, which is named; the model may then hold some new values.
        ValueError: Keys or shapes that do not match, or an optimizer, schedule or
            loader that was not saved or is another one.

    Example::

        start = spmd.checkpoint.load("runs/a/100", model, optimizer).step
    """
    _background.settle()
    wanted = dict(extra or {})
    saved_as = source_at(path)
    holdings = all_holdings(model, wanted)
    places = Places.of(model_places(model))
    found = matched(
        places, holdings, _of_model(saved_as), where=saved_as.url, strict=strict
    )
    more = Places.of(extra_places(wanted))
    kept = _of_extra(saved_as, wanted)
    found_extra = matched(more, holdings, kept, where=saved_as.url)
    source = PartsSource(saved_as, holdings, {**found.found, **found_extra.found})
    saved = None if optimizer is None else check_optimizer(model, optimizer, source)
    rest = _states(source, scheduler=scheduler, loader=loader)
    stays = optimizer is None or keeps_its_state(model, optimizer, source)
    stays = stays and not (assign and _changes_dtypes(places, source))
    elsewhere = _get_ready(model, wanted, stays=stays and not source.partly)
    source.keep(model, places.first)
    total = sum(map(_num_bytes, source.kinds.values()))
    with progress_bar(f"loading {source.url}", total, progress) as advance:
        on_meta = any(
            p.device.type == "meta" and id(p) not in elsewhere
            for p in model.parameters()
        )
        fill = partial(_fill_all, source=source, elsewhere=elsewhere, advance=advance)
        fill(places, assign=assign)
        if on_meta and any(p.device.type == "xla" for p in model.parameters()):
            to_device(model)  # buffers that are in no checkpoint
        fill(more)
        if optimizer is not None and saved is not None:
            load_optimizer(
                model, optimizer, source, saved, elsewhere=elsewhere, advance=advance
            )
    keep_on_use(model, optimizer, *wanted.values())
    returned = _extra(source, wanted)
    for thing, (what, state) in rest:
        set_state_of(thing, state, what)
    if random:
        _set_random(source, model)
    return Loaded(
        source.url, source.object("step"), returned, found.missing, found.unexpected
    )


def _of_model(source: Source) -> dict[str, Kind]:
    return {k: kind for k, kind in source.kinds.items() if k.startswith("model.")}


def _of_extra(source: Source, wanted: Mapping[str, Any]) -> dict[str, Kind]:
    """Of what was saved as `extra`, only what is asked for has to match."""
    return {
        key: kind
        for key, kind in source.kinds.items()
        if key.startswith("extra.")
        and any(key == f"extra.{n}" or key.startswith(f"extra.{n}.") for n in wanted)
    }


def _fill_all(
    places: Places,
    source: PartsSource,
    *,
    assign: bool = False,
    elsewhere: Mapping[int, Refill],
    advance: Advance,
) -> None:
    device = target_device(place.read() for place in places.first)
    for place in places.first:
        if place.key in source.kinds:
            fill_place(
                place,
                source,
                assign=assign,
                device=device,
                elsewhere=elsewhere,
                advance=advance,
            )


def _states(source: Source, **things: Any) -> list[tuple[Any, tuple[str, Any]]]:
    """Schedulers and loaders that were given, with what was saved of them."""
    found = []
    for what, thing in things.items():
        if thing is None:
            continue
        state = source.object(
            "scheduler" if what == "scheduler" else _mine(source, what)
        )
        if state is None:
            raise ValueError(f"load: {source.url} has no {what}; it was saved without")
        if what == "loader" and isinstance(state, dict) and state.get("own"):
            _check_same_processes(source)
        found.append((thing, (what, state)))
    return found


def _check_same_processes(source: Source) -> None:
    have = current_team().count
    if source.num_processes != have:
        raise ValueError(
            f"load: the loader keeps its position by itself, one for each process; "
            f"{source.url} has {source.num_processes}, this run {have}. Run with as "
            f"many processes, or load without the loader"
        )


def _mine(source: Source, what: str) -> str:
    """The key of what each process saves, of this one or the one it stands for."""
    return f"process.{current_team().index % source.num_processes}.{what}"


def _set_random(source: Source, model: nn.Module) -> None:
    state = source.object(_mine(source, "random"))
    if state is not None:
        _random_state.set_all_states(state)
        if "devices" in state:
            _jax_values.set_seed(model, state["devices"])


def _changes_dtypes(places: Places, source: PartsSource) -> bool:
    return any(
        getattr(torch, source.kinds[place.key][0]) != place.read().dtype
        for place in places.first
        if place.key in source.kinds
    )


def _get_ready(
    model: nn.Module, extra: Mapping[str, Any], *, stays: bool
) -> dict[int, Refill]:
    """Have values where they can be replaced, and nothing waiting to use the old.

    Args:
        model: The model.
        extra: What else is to be filled.
        stays: Whether what is in jax's arrays can stay there.

    Returns:
        How to replace the values of tensors that do not hold them.
    """
    modules = [v for v in extra.values() if isinstance(v, nn.Module)]
    if not stays:
        _jax_values.bring_back(model)
    if any(p.device.type == "xla" for p in model.parameters()):
        from spmd._torch_xla import graph as torch_xla_graph

        torch_xla_graph.settle(wait_for_it=True)
    return _jax_values.refills(model, *modules)


def _extra(source: Source, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Give states back to what was given, and return what was not."""
    returned = {}
    for key in source.objects():
        if not key.startswith("extra."):
            continue
        name = key.removeprefix("extra.")
        value = source.object(key)
        given = wanted.get(name)
        if has_state(given) and not isinstance(given, nn.Module):
            set_state_of(given, value, f"extra[{name!r}]")
        elif not any(torch.is_tensor(leaf) for _, leaf in named_leaves(given)):
            returned[name] = _with_tensors(value, key, source)
    return returned


def _with_tensors(value: Any, key: str, source: Source) -> Any:
    if isinstance(value, str) and value == ABSENT:
        return source.whole(key)
    if isinstance(value, dict):
        return {
            k: _with_tensors(v, join(key, str(k)), source) for k, v in value.items()
        }
    if isinstance(value, list):
        return [
            _with_tensors(v, join(key, str(i)), source) for i, v in enumerate(value)
        ]
    return value


def _num_bytes(kind: tuple[str, tuple[int, ...]]) -> int:
    return getattr(torch, kind[0]).itemsize * torch.Size(kind[1]).numel()
