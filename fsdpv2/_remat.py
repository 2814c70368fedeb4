"""Rematerialisation: compute a layer's values again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
)

from spmd._remat.region import Call, Tensors, computed_again
from spmd._remat.surrounding import dropped

Policy = Callable[..., CheckpointPolicy | bool]
Remat = Literal["none", "full", "selective"] | Policy


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

    def contexts() -> tuple[list[Any], list[Any]]:
        if remat == "full":
            return [], []
        chosen = keep_products if remat == "selective" else remat
        keep, use = create_selective_checkpoint_contexts(chosen)
        return [keep], [use]

    def drop(tensors: Tensors, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with dropped():
            return call(tensors, args, kwargs)

    return computed_again(drop, args, kwargs, parameters, buffers, contexts=contexts)
