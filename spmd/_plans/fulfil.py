"""Give promised tensors their values when something asks for them before a step ran."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._marking.planning import is_planning
from spmd._marking.promise import Source, kept, promised
from spmd._plans.module import named_tensors
from spmd._trace.stand_in import exchange

_WATCHED = "_spmd_fulfils"


def watch(*owners: nn.Module | Optimizer) -> None:
    """Have promises kept at a model's or an optimizer's first use outside a step.

    That is ``state_dict()``, ``load_state_dict()``, a forward, or ``optimizer.step()``.

    Args:
        *owners: Their tensors may be promised, now or later.
    """
    for owner in owners:
        if vars(owner).get(_WATCHED):
            continue
        owner.__dict__[_WATCHED] = True
        owner.register_state_dict_pre_hook(_on_use)
        owner.register_load_state_dict_pre_hook(_on_use)
        if isinstance(owner, nn.Module):
            owner.register_forward_pre_hook(_on_use)
        else:
            owner.register_step_pre_hook(_on_use)


def fulfil(owner: nn.Module | Optimizer) -> None:
    """Give all promised tensors of a model or optimizer their values, on the CPU.

    With several processes every one must call it.

    Args:
        owner: The model or optimizer.
    """
    for tensor in _tensors(owner):
        source = promised(tensor)
        if source is not None:
            value = _whole(source, tensor)
            if tensor.requires_grad:
                value.requires_grad_()
            exchange(tensor, value)
            kept(tensor)


def _on_use(owner: nn.Module | Optimizer, *_: Any, **__: Any) -> None:
    if is_planning() or not any(promised(t) for t in _tensors(owner)):
        return
    if isinstance(owner, nn.Module) and "spmd._jax.step" in sys.modules:
        from spmd._jax.step import owners_of

        for step in owners_of(owner):  # what it has not read is promised still
            step.pull()
    fulfil(owner)


def _whole(source: Source, tensor: torch.Tensor) -> torch.Tensor:
    array = getattr(source, "array", None)  # of `Held`: gathered from all processes
    if array is not None:
        return array.torch()
    value = torch.as_tensor(source(tuple(slice(0, d) for d in tensor.shape)))
    return value.detach().clone()


def _tensors(owner: nn.Module | Optimizer) -> Iterator[torch.Tensor]:
    if isinstance(owner, nn.Module):
        yield from (tensor for _, tensor in named_tensors(owner))
        return
    for group in owner.param_groups:
        for parameter in group["params"]:  # the model's hooks see to these
            for value in owner.state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor):
                    yield value
