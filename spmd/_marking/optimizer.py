"""Optimizer state follows its parameters' specs, from the first step on."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from spmd._marking.mark import Annotation, clear_sharding, get_sharding, put

_following = False


def shard_optimizer(optimizer: Optimizer) -> Optimizer:
    """Give optimizer state and updated parameters the parameters' specs, in place.

    State of a parameter's own shape (moments, momentum) takes its spec; anything else
    (step counts, factored moments) stays whole. State that was left on the CPU, where
    it was made before the model was moved, is brought along. Optimizers over annotated
    parameters get this before and after each step by themselves: call it only to split
    state that was put in by hand, or loaded, before the next step.

    Args:
        optimizer: Any `torch.optim.Optimizer`.

    Returns:
        The same optimizer.
    """
    return _shard(optimizer, again=True)


def follow_anew(optimizer: Optimizer) -> None:
    """Split state anew whose parameter was, before a step is traced: its data moves.

    Args:
        optimizer: Any.
    """
    _shard(optimizer, again=False)


def follow_parameters() -> None:
    """Have every optimizer in this process shard its state.

    Before each step what has no spec yet, which is state that was just loaded; after
    it everything, since a step computes new values.
    """
    global _following
    if _following:
        return
    _following = True

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        _shard(optimizer, again=False)

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        _shard(optimizer, again=True)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _shard(optimizer: Optimizer, *, again: bool) -> Optimizer:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            annotation = get_sharding(parameter)
            if annotation is None:
                continue
            state = optimizer.state.get(parameter, {})
            _bring(state, parameter.device)
            tensors = {k: v for k, v in state.items() if _is_like(v, parameter)}
            for key, tensor in {"parameter": parameter, **tensors}.items():
                if again or get_sharding(tensor) != annotation:
                    _follow(tensor, annotation, key)
    return optimizer


def _bring(state: dict[str, Any], device: torch.device) -> None:
    """Move state that was made before the parameter was moved."""
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.ndim > 0:
            if value.device.type == "cpu" and device.type == "xla":
                state[key] = value.to(device)


def _is_like(value: Any, parameter: torch.Tensor) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.shape == parameter.shape
        and value.device == parameter.device
    )


def _follow(tensor: torch.Tensor, annotation: Annotation, key: str) -> None:
    known = get_sharding(tensor)
    if known is not None and known != annotation:
        clear_sharding(tensor)  # the parameter was annotated anew since
    with torch.no_grad():
        put(tensor, annotation.mesh, annotation.spec, f"optimizer state {key!r}")
