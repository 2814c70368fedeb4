"""Give an optimizer, new or used, the state of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._marking.mark import get_sharding, remember
from spmd._runtime import runtime
from spmd.checkpoint._fill import fill_place
from spmd.checkpoint._jax_values import Refill
from spmd.checkpoint._objects import HOW_TO_RUN
from spmd.checkpoint._parts import saved_names
from spmd.checkpoint._parts_source import PartsSource
from spmd.checkpoint._places import Place, optimizer_names, optimizer_places
from spmd.checkpoint._promised import can_promise
from spmd.checkpoint._read import Advance


def check_optimizer(
    model: nn.Module, optimizer: Optimizer, source: PartsSource
) -> Mapping[str, Any]:
    """Refuse an optimizer that the saved state is not for.

    Args:
        model: Whose names the parameters have.
        optimizer: The optimizer.
        source: The checkpoint.

    Returns:
        What `load_optimizer` needs.

    Raises:
        ValueError: No saved state, another kind, or other parameters in a group; state
            that the model has no place for.
    """
    saved = source.object("optimizer")
    if saved is None:
        raise ValueError(
            f"load: {source.url} has no optimizer state; load without the optimizer"
        )
    kind = type(optimizer).__name__
    if saved["class"] != kind:
        raise ValueError(
            f"load: {source.url} has the state of {saved['class']}, the optimizer is "
            f"{kind}; build the same optimizer, or load without it"
        )
    names = saved_names(model, optimizer)
    theirs = [group["params"] for group in saved["groups"]]
    if list(map(len, names)) != list(map(len, theirs)) or names != theirs:
        raise ValueError(
            f"load: the optimizer has other parameters than {source.url}: "
            f"{_first_difference(names, theirs)}. Build it with the same parameter "
            f"groups in the same order"
        )
    _check_cuts(model, optimizer, source)
    source.check_numbers()
    return saved


def _check_cuts(model: nn.Module, optimizer: Optimizer, source: PartsSource) -> None:
    """Refuse state that is of what the model holds otherwise, and cannot be cut so."""
    names = {name for group in optimizer_names(model, optimizer) for name in group}
    strange = [*source.uncut]
    for key in source.kinds:
        if key.startswith("optimizer."):
            name, _, _ = key.removeprefix("optimizer.").rpartition(".")
            strange += [key] if name not in names else []
    if strange:
        raise ValueError(
            f"load: {source.url} has {', '.join(strange[:4])}, which does not go "
            f"number by number with a parameter that is held in pieces, or stacked "
            f"with those of other layers, in one of the two models. Take apart and "
            f"stack (scan_layers) the same weights as when it was saved, or load "
            f"without the optimizer"
        )


def keeps_its_state(
    model: nn.Module, optimizer: Optimizer, source: PartsSource
) -> bool:
    """Whether loading changes values only: no tensor of the state comes or goes.

    Args:
        model: Whose names the parameters have.
        optimizer: The optimizer.
        source: The checkpoint.
    """
    places = optimizer_places(model, optimizer)
    ours = {place.key: tuple(place.read().shape) for place in places}
    theirs = {
        key: shape
        for key, (_, shape) in source.kinds.items()
        if key.startswith("optimizer.")
    }
    return ours == theirs


def load_optimizer(
    model: nn.Module,
    optimizer: Optimizer,
    source: PartsSource,
    saved: Mapping[str, Any],
    *,
    elsewhere: Mapping[int, Refill],
    advance: Advance,
) -> None:
    """Replace an optimizer's state and hyperparameters.

    State that is not there yet is created split as its parameter is, piece by piece.

    Args:
        model: Whose names the parameters have.
        optimizer: The optimizer.
        source: The checkpoint.
        saved: From `check_optimizer`.
        elsewhere: For tensors whose values are elsewhere, by identity.
        advance: Called with the number of bytes that were read.
    """
    entries: dict[str, set[str]] = {}
    for key in source.kinds:
        if key.startswith("optimizer."):
            name, _, entry = key.removeprefix("optimizer.").rpartition(".")
            entries.setdefault(name, set()).add(entry)
    names = optimizer_names(model, optimizer)
    for group, found in zip(optimizer.param_groups, names, strict=True):
        for parameter, name in zip(group["params"], found, strict=True):
            tensors, values = entries.get(name, set()), saved["values"].get(name, {})
            if not tensors and not values:
                optimizer.state.pop(parameter, None)
                continue
            table = optimizer.state[parameter]
            for entry in set(table) - tensors - set(values):
                del table[entry]
            table.update(values)
            kept = {k for k, v in table.items() if id(v) in elsewhere}
            for entry in sorted(tensors - kept):
                kind = source.kinds[f"optimizer.{name}.{entry}"]
                _make_room(table, entry, parameter, kind, group)
    device = "jax" if runtime() == "jax" else "xla"
    for place in optimizer_places(model, optimizer):
        fill_place(place, source, device=device, elsewhere=elsewhere, advance=advance)
    for group, theirs in zip(optimizer.param_groups, saved["groups"], strict=True):
        for key, value in theirs.items():
            if key not in HOW_TO_RUN:
                _set_option(group, key, value)


def _make_room(
    table: dict[str, Any],
    entry: str,
    parameter: torch.Tensor,
    kind: tuple[str, tuple[int, ...]],
    group: Mapping[str, Any],
) -> None:
    """Have a tensor in an optimizer's state that the saved one can be put into."""
    dtype, shape = getattr(torch, kind[0]), kind[1]
    stays = entry == "step" and not (group.get("capturable") or group.get("fused"))
    device = torch.device("cpu") if stays else parameter.device
    if runtime() == "jax":  # moments go where the step wants them
        split = shape == tuple(parameter.shape) and can_promise(parameter)
        device = torch.device("meta" if split else "cpu")
    held = table.get(entry)
    if not torch.is_tensor(held) or tuple(held.shape) != shape:
        held = None
    elif held.device.type == "meta" or (held.ndim and held.device != device):
        held = None  # hollow, or made before the parameter was moved
    if held is None and device.type == "xla":
        held = torch.empty(shape, dtype=dtype, device="meta")
    elif held is None:
        held = torch.empty(shape, dtype=dtype, device=device)
    annotation = get_sharding(parameter)
    if annotation is not None and shape == tuple(parameter.shape):
        if held.device.type in ("xla", "meta") and get_sharding(held) is None:
            remember(held, annotation.mesh, annotation.spec)
    table[entry] = held


def _set_option(group: dict[str, Any], key: str, value: Any) -> None:
    held = group.get(key)
    if isinstance(held, torch.Tensor):
        # The tensor stays: a compiled step and a scheduler may hold it.
        made = value if torch.is_tensor(value) else torch.tensor(value)
        place = Place(key, lambda: held, lambda _: None)
        _fill_scalar(place, made.to(held.dtype))
    else:
        group[key] = value


def _fill_scalar(place: Place, value: torch.Tensor) -> None:
    held = place.read()
    if held.device.type != "xla":
        held.detach().copy_(value)
        return
    from spmd._torch_xla import graph as torch_xla_graph

    held.data = torch_xla_graph.scalar(value.item(), value.dtype)


def _first_difference(ours: list[list[str]], theirs: list[list[str]]) -> str:
    if len(ours) != len(theirs):
        return f"it has {len(ours)} groups, the checkpoint {len(theirs)}"
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if len(mine) != len(other):
            return f"group {i} has {len(mine)} parameters, the checkpoint {len(other)}"
        for a, b in zip(mine, other, strict=True):
            if a != b:
                return f"group {i} has {a} where the checkpoint has {b}"
    return "no difference"
