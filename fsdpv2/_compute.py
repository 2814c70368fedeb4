"""Call a module with other tensors in place of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.utils import stateless

from fsdpv2._keep import keeping
from fsdpv2._keeper import Keeper, active
from fsdpv2._precision import MixedPrecision
from fsdpv2._reduce import reducing
from fsdpv2._remat import Remat, rematerialised
from fsdpv2._specs import AXIS
from fsdpv2._weights import cast, gathered
from spmd._remat.surrounding import Twins, surrounding

UNIT = "_fsdp_unit"
"""Where a module keeps its unit."""


def compute(
    module: nn.Module,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    remat: Remat,
    precision: MixedPrecision | None,
    gather: bool = False,
) -> Any:
    """Call a module, its values rematerialised and its weights cast as wanted.

    Args:
        module: Whose parameters are used.
        call: The module, or its own forward.
        args: For it.
        kwargs: For it.
        remat: What is computed again in the backward pass.
        precision: Dtypes, or None.
        gather: Whether to say that weights are gathered also where nothing is computed
            again.

    Returns:
        What the module returns.
    """
    again = remat != "none" and torch.is_grad_enabled()
    into = active()
    replaced = again or gather or precision is not None
    if not replaced and into is None:
        return call(*args, **kwargs)
    if precision is not None:
        args, kwargs = precision.cast_inputs_of((args, kwargs))
    own = set(own_parameters(module)) if precision is not None else set()

    def run(
        tensors: Mapping[str, torch.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        used, masters = dict(tensors), {}
        for name, tensor in tensors.items():
            if precision is not None and name in own:
                used[name] = cast(tensor, precision.compute)
            if again or gather:
                used[name] = gathered(used[name], axis=AXIS)
            masters[used[name]] = tensor
        instead = _instead(module, used) if replaced else nullcontext()

        def reduced(twins: Twins) -> AbstractContextManager[Any]:
            seen = {twins.get(used, used): master for used, master in masters.items()}
            return _reduced(precision, seen, into)

        with instead, surrounding(reduced):
            return call(*args, **kwargs)

    parameters = dict(module.named_parameters())
    if again:
        buffers = dict(module.named_buffers())
        output = rematerialised(run, args, kwargs, parameters, buffers, remat=remat)
    else:
        output = run(parameters, args, kwargs)
    return output if precision is None else precision.cast_output(output)


def own_parameters(module: nn.Module) -> Iterator[str]:
    """Names of the parameters that no unit inside a module has.

    Args:
        module: A module, which is a unit itself.

    Yields:
        Names, each parameter once.
    """
    inside = [
        f"{name}."
        for name, child in module.named_modules()
        if child is not module and UNIT in child.__dict__
    ]
    for name, _ in module.named_parameters():
        if not name.startswith(tuple(inside)):
            yield name


def _instead(
    module: nn.Module, tensors: Mapping[str, torch.Tensor]
) -> AbstractContextManager[Any]:
    """What `torch.func.functional_call` does around a call; tied ones stay tied."""
    return stateless._reparametrize_module(module, dict(tensors), tie_weights=True)


def _reduced(
    precision: MixedPrecision | None,
    masters: Mapping[torch.Tensor, torch.Tensor],
    into: Keeper | None,
) -> AbstractContextManager[Any]:
    dtype = None if precision is None else precision.reduce
    if precision is not None and dtype == precision.compute:
        dtype = None
    if into is not None:
        return keeping(masters, into, dtype=dtype)
    return nullcontext() if dtype is None else reducing(masters, dtype=dtype)
