"""Rematerialisation: compute a layer's values again in the backward pass.

torch's own activation checkpointing decides what is kept. What is added is what XLA
needs: a barrier that ties the second computation to the gradient that arrives. Without
it the compiler would see the same computation twice, do it once, and keep the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Literal

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from fsdpv2._random import Drawn, KeepDraws, RepeatDraws
from spmd._marking.mark import get_sharding, put
from spmd._names.rebuild import leaves, rebuild
from spmd._torch_xla import seam
from spmd._unwind import checkpoints_left

Tensors = Mapping[str, torch.Tensor]
Policy = Callable[..., CheckpointPolicy | bool]
Remat = Literal["none", "full", "selective"] | Policy
Call = Callable[[Tensors, tuple[Any, ...], dict[str, Any]], Any]


def check_remat(remat: Any, *, scan_layers: bool = False) -> None:
    """Refuse an unknown choice.

    Args:
        remat: As given to `FSDPv2`.
        scan_layers: As given to `FSDPv2`.

    Raises:
        ValueError: Neither a known name nor a callable, or one that scan does not do.
    """
    if scan_layers and remat not in ("none", "full"):
        raise ValueError(
            f"FSDPv2: scan_layers=True keeps what enters each layer and computes the "
            f"rest again, so remat={remat!r} cannot be had; use 'full', or leave "
            f"scan_layers out"
        )
    if remat not in ("none", "full", "selective") and not callable(remat):
        raise ValueError(
            f"FSDPv2: remat={remat!r}; 'none', 'full', 'selective' or a policy "
            f"(context, operation, *args, **kwargs) -> bool or CheckpointPolicy is "
            f"allowed"
        )


def keep_products(_context: Any, operation: Any, *args: Any, **kwargs: Any) -> bool:
    """Keep products with a weight; compute attention, norms and the rest again.

    Args:
        _context: Whether this is the second computation.
        operation: The operation.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Returns:
        Whether its result is kept.
    """
    if str(operation) == _DOT:
        return not args[4]  # no batch dims
    return operation in _PRODUCTS


_DOT = "spmd.dot_general.default"  # what `spmd.sharding_preserving` computes with
_ATEN = torch.ops.aten
_PRODUCTS = frozenset(
    {
        _ATEN.mm.default,
        _ATEN.addmm.default,
        _ATEN.linear.default,
        _ATEN.convolution.default,
        _ATEN.convolution_overrideable.default,
    }
)


def rematerialised(
    call: Call,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    parameters: Tensors,
    buffers: Tensors,
    *,
    remat: Remat,
) -> Any:
    """Call a module; compute its values again when its gradients are wanted.

    Args:
        call: Calls the module with these tensors, by name, instead of its own.
        args: Its arguments.
        kwargs: Its keyword arguments.
        parameters: Its parameters.
        buffers: Its buffers. The second computation does not update them.
        remat: ``"full"``, ``"selective"`` or a policy.

    Returns:
        What the module returns.
    """
    region = _Region(call, args, kwargs, parameters, buffers, remat)
    # No arguments are passed on: torch would ask for a module torch.xla.
    with checkpoints_left():
        output = checkpoint(
            region.run,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=region.contexts,
        )
    for _, leaf in leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
            leaf.register_hook(region.wait)
    return output


class _Region:
    """One call of a module whose values are not all kept."""

    def __init__(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parameters: Tensors,
        buffers: Tensors,
        remat: Remat,
    ) -> None:
        self._call = call
        self._given = args, kwargs
        self._parameters, self._buffers = parameters, buffers
        self._remat = remat
        self._again: list[torch.Tensor] | None = None
        self._was_run = False

    def run(self) -> Any:
        """Call the module; from the second time on with what waits for a gradient."""
        if not self._was_run:
            self._was_run = True
            return self._call(self._parameters, *self._given)
        given, self._again = self._again, None
        twins = iter(given or _behind_barrier(self._read()))
        tensors = {n: next(twins) for n in (*self._parameters, *self._buffers)}
        args, kwargs = rebuild(
            self._given, lambda leaf: next(twins) if torch.is_tensor(leaf) else leaf
        )
        return self._call(tensors, args, kwargs)

    def wait(self, gradient: torch.Tensor) -> torch.Tensor:
        """Have what the second computation starts from wait for a gradient."""
        if self._again is not None:
            return gradient
        gradient, *self._again = _behind_barrier([gradient, *self._read()])
        return gradient

    def _read(self) -> list[torch.Tensor]:
        given = [leaf for _, leaf in leaves(self._given) if torch.is_tensor(leaf)]
        return [*self._parameters.values(), *self._buffers.values(), *given]

    def contexts(
        self,
    ) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """What the first and the second computation run in, for torch."""
        drawn: Drawn = []
        first: list[AbstractContextManager[Any]] = [KeepDraws(drawn)]
        second: list[AbstractContextManager[Any]] = [_autocast(), RepeatDraws(drawn)]
        if self._remat != "full":
            chosen = keep_products if self._remat == "selective" else self._remat
            keep, use = create_selective_checkpoint_contexts(chosen)
            first.insert(0, keep)
            second.insert(1, use)
        return _All(first), _All(second)


def _behind_barrier(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same values, which XLA can only have once it has all of them."""
    with torch.no_grad():
        twins = [tensor.detach().clone() for tensor in tensors]
        on_device = [twin for twin in twins if twin.device.type == "xla"]
        if on_device:
            seam.optimization_barrier(on_device)
        for tensor, twin in zip(tensors, twins, strict=True):
            known = get_sharding(tensor)
            if known is not None:  # the compiler does not see through the barrier
                put(twin, known.mesh, known.spec, "a value that is computed again")
    for tensor, twin in zip(tensors, twins, strict=True):
        twin.requires_grad_(tensor.requires_grad)
    return twins


def _autocast() -> AbstractContextManager[Any]:
    """The automatic precision that is in force now."""
    return torch.autocast(
        "xla",
        enabled=torch.is_autocast_enabled("xla"),
        dtype=torch.get_autocast_dtype("xla"),
    )


class _All(AbstractContextManager[None]):
    """Several contexts, entered again for each backward through a graph."""

    def __init__(self, contexts: list[AbstractContextManager[Any]]) -> None:
        self._contexts = contexts
        self._entered = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context)
            self._entered = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self._entered.__exit__(*error)
