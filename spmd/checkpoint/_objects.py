"""What a training keeps besides its tensors: hyperparameters, schedules, positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._names.tree import named_leaves
from spmd.checkpoint._parts import holdings_of, names_of, saved_names
from spmd.checkpoint._places import optimizer_names

HOW_TO_RUN = ("params", "capturable", "foreach", "fused", "differentiable")
"""Entries of a parameter group that say how to compute, not what: they stay as they are
in the optimizer that is loaded into."""


def optimizer_object(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Hyperparameters, and what of the state is no tensor.

    Args:
        model: Whose names the parameters have.
        optimizer: The optimizer.

    Returns:
        Plain values and CPU tensors.
    """
    names = optimizer_names(model, optimizer)
    saved, holdings = saved_names(model, optimizer), holdings_of(model)
    groups, values = [], {}
    for i, (group, found) in enumerate(zip(optimizer.param_groups, names, strict=True)):
        options = {k: on_host(v) for k, v in group.items() if k not in HOW_TO_RUN}
        groups.append({"params": saved[i], **options})
        for parameter, name in zip(group["params"], found, strict=True):
            table = optimizer.state.get(parameter, {})
            rest = {k: v for k, v in table.items() if not torch.is_tensor(v)}
            if rest:
                values.update(dict.fromkeys(names_of(name, holdings), rest))
    return {"groups": groups, "values": values, "class": type(optimizer).__name__}


def state_of(thing: Any) -> Any:
    """What has to be kept of something that has a ``state_dict()``.

    Args:
        thing: A scheduler, several in a list or mapping, or None.

    Returns:
        Plain values and CPU tensors.
    """
    if isinstance(thing, Mapping):
        return {key: state_of(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [state_of(value) for value in thing]
    return on_host(thing.state_dict())


def set_state_of(thing: Any, state: Any, what: str) -> None:
    """Give a state back to what it came from.

    Args:
        thing: As for `state_of`.
        state: From `state_of`.
        what: What it is, for messages.

    Raises:
        ValueError: Another number of things, or other names.
    """
    if isinstance(thing, Mapping) and isinstance(state, Mapping):
        if thing.keys() != state.keys():
            raise ValueError(
                f"load: {what} has {sorted(thing)}, the checkpoint {sorted(state)}"
            )
        for key, value in thing.items():
            set_state_of(value, state[key], f"{what}[{key!r}]")
    elif isinstance(thing, list | tuple) and isinstance(state, list):
        if len(thing) != len(state):
            raise ValueError(
                f"load: {len(thing)} of {what} were given, the checkpoint has "
                f"{len(state)}"
            )
        for i, (value, found) in enumerate(zip(thing, state, strict=True)):
            set_state_of(value, found, f"{what}[{i}]")
    else:
        stateful: Any = thing
        stateful.load_state_dict(state)


def extra_object(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What of `extra` is kept as an object: everything but its tensors.

    Args:
        extra: Modules, things with a ``state_dict()``, tensors, containers, values.

    Returns:
        By name; tensors are left out, and modules as a whole.
    """
    found = {}
    for name, value in extra.items():
        if isinstance(value, nn.Module):
            continue
        if has_state(value):
            found[name] = state_of(value)
        elif not any(torch.is_tensor(leaf) for _, leaf in named_leaves(value)):
            found[name] = on_host(value)
        else:
            found[name] = _without_tensors(value)
    return found


def has_state(value: Any) -> bool:
    """Whether something gives its state and takes it back.

    Args:
        value: Anything.
    """
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


ABSENT = "\0tensor"
"""Stands where a tensor was."""


def _without_tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ABSENT
    if isinstance(value, Mapping):
        return {key: _without_tensors(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(v) for v in value]
    return value


def on_host(value: Any) -> Any:
    """A copy with tensors on the CPU, and numbers of numpy as Python's.

    Args:
        value: Any containers.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        kept = {key: on_host(v) for key, v in value.items()}
        return kept if type(value) is dict else _as_type(value, kept)
    if isinstance(value, list | tuple):
        items = [on_host(v) for v in value]
        return items if isinstance(value, list) else tuple(items)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()  # a learning rate, say
    return value


def _as_type(value: Mapping[Any, Any], kept: dict[Any, Any]) -> Any:
    """Counters and ordered dicts stay what they are: schedulers rely on it."""
    from collections import Counter, OrderedDict

    if isinstance(value, Counter):
        return Counter(kept)
    return OrderedDict(kept) if isinstance(value, OrderedDict) else kept
