"""Wrapping inside wrapping: submodules that get a wrapper of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from fsdpv2._policy import select

_NEEDED = {"remat": "none", "mixed_precision": None}
"""Options that only the layers' wrappers can see to, and what asks for nothing."""


def repeated_layers(root: nn.Module) -> tuple[type[nn.Module], ...]:
    """Classes of the layers that a model consists of.

    Args:
        root: The model.

    Returns:
        The classes in its outermost lists of modules of one class, such as
        ``(LlamaDecoderLayer,)``.
    """
    found: dict[type[nn.Module], None] = {}
    inside: set[int] = set()
    for module in root.modules():
        classes = {type(child) for child in module.children()}
        callable_ = all(c.forward is not nn.Module.forward for c in classes)
        is_list = isinstance(module, nn.ModuleList | nn.Sequential)
        if is_list and len(module) > 1 and len(classes) == 1 and callable_:
            if id(module) not in inside:
                found.update(dict.fromkeys(classes))
            inside |= {id(m) for m in module.modules()}
    return tuple(found)


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
        ValueError: A layer class that no submodule has, or a wrapper that cannot do
            what is asked for.
    """
    accepted = _accepted(wrapper, options)
    for name, default in _NEEDED.items():
        if name not in accepted and options.get(name, default) != default:
            raise ValueError(
                f"FSDPv2: {name}={options[name]!r} is for the layers, but "
                f"auto_wrapper_callable={wrapper!r} does not take {name}; have it do, "
                f"and hand it on to FSDPv2"
            )
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
    hand them on to anything, so what torch_xla's class lacks is left out unless asked.
    """
    parameters = inspect.signature(wrapper).parameters.values()
    named = {p.name for p in parameters}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        named |= {"mesh", "shard_output", "extra_data_axis"}
        named |= {n for n, d in _NEEDED.items() if options.get(n, d) != d}
    return {name: value for name, value in options.items() if name in named}
