"""Wrapping inside wrapping: submodules that get a wrapper of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from fsdpv2._policy import select


def wrap_children(
    root: nn.Module,
    policy: Any,
    wrapper: Callable[..., nn.Module],
    *,
    options: dict[str, Any],
) -> None:
    """Replace the submodules a policy chooses by wrapped ones, in place.

    Args:
        root: The module whose submodules are wrapped; never itself.
        policy: See `fsdpv2._policy.select`.
        wrapper: Called with a submodule and those of the options it takes.
        options: Keyword arguments of `FSDPv2`.

    Raises:
        TypeError: A policy of an unknown form.
        ValueError: A layer class that no submodule has.
    """
    accepted = _accepted(wrapper, options)
    done: dict[int, nn.Module] = {}
    for name in select(policy, root):
        parent, _, key = name.rpartition(".")
        owner = root.get_submodule(parent)
        child = owner._modules[key]
        assert child is not None
        if id(child) not in done:
            done[id(child)] = wrapper(child, **accepted)
        owner._modules[key] = done[id(child)]


def _accepted(
    wrapper: Callable[..., nn.Module], options: dict[str, Any]
) -> dict[str, Any]:
    """Options that a wrapper takes.

    One written for torch_xla takes `mesh` and `shard_output`. With ``**kwargs`` it may
    hand them on to anything, so what torch_xla's class lacks is left out.
    """
    parameters = inspect.signature(wrapper).parameters.values()
    named = {p.name for p in parameters}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        named |= {"mesh", "shard_output", "extra_data_axis"}
    return {name: value for name, value in options.items() if name in named}
