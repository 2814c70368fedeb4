"""`twin`: a module like another, with tensors of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def twin(shell: nn.Module, like: nn.Module, of: Callable[[torch.Tensor], Any]) -> Any:
    """A module like another, with tensors of its own.

    What a wrapper shares with the module that it wraps, the new ones share too; all
    else is the other's: hooks, settings, whatever is no module and no tensor.

    Args:
        shell: What it is like; its tensors are not looked at.
        like: A module of the same structure, with the tensors.
        of: Gives the new tensor for one of these; asked once for each.

    Returns:
        The module.
    """
    return _twin(shell, like, of, {})


def _twin(
    shell: Any, like: Any, of: Callable[[torch.Tensor], Any], memo: dict[int, Any]
) -> Any:
    if id(shell) in memo:
        return memo[id(shell)]
    made = object.__new__(type(shell))
    memo[id(shell)] = made
    own = dict(vars(shell))

    def own_tensor(tensor: torch.Tensor | None) -> Any:
        if tensor is not None and id(tensor) not in memo:
            memo[id(tensor)] = of(tensor)
        return None if tensor is None else memo[id(tensor)]

    for table in ("_parameters", "_buffers"):
        entries = vars(like)[table]
        if id(entries) not in memo:
            memo[id(entries)] = {k: own_tensor(t) for k, t in entries.items()}
        own[table] = memo[id(entries)]
    children = vars(shell)["_modules"]
    if id(children) not in memo:
        found: dict[str, Any] = {}
        memo[id(children)] = found
        for key, child in children.items():
            other = vars(like)["_modules"][key]
            found[key] = None if child is None else _twin(child, other, of, memo)
    own["_modules"] = memo[id(children)]
    for key, value in own.items():
        if isinstance(value, nn.Module):  # what a wrapper wraps is no child of it
            own[key] = _twin(value, vars(like)[key], of, memo)
    own["training"] = like.training
    hooks = own["_load_state_dict_pre_hooks"]
    own["_load_state_dict_pre_hooks"] = OrderedDict(
        (key, _rebound(hook, made)) for key, hook in hooks.items()
    )
    vars(made).update(own)
    return made


def _rebound(hook: Any, module: nn.Module) -> Any:
    """A hook that torch calls with the module that it was registered for."""
    if not getattr(hook, "with_module", False):
        return hook
    return type(hook)(hook.hook, module)
