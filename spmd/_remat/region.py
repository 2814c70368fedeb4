"""A call whose values are computed again in the backward pass.

torch's own activation checkpointing decides what is kept. What is added is what XLA
needs: a barrier that ties the second computation to the gradient that arrives. Without
it the compiler would see the same computation twice, do it once, and keep the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch.utils import checkpoint as torch_checkpoint

from spmd._marking.mark import get_sharding, put
from spmd._names.rebuild import leaves, rebuild
from spmd._remat.draws import Drawn, KeepDraws, RepeatDraws
from spmd._remat.surrounding import around, entered
from spmd._torch_xla import seam
from spmd._unwind import checkpoints_left

Tensors = Mapping[str, torch.Tensor]
Call = Callable[[Tensors, tuple[Any, ...], dict[str, Any]], Any]
Contexts = Callable[[], tuple[list[Any], list[Any]]]

OF_TORCH: Any = vars(torch_checkpoint.checkpoint)["__wrapped__"]
"""torch's own `checkpoint`, whatever stands for it."""


def computed_again(
    call: Call,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    parameters: Tensors,
    buffers: Tensors,
    *,
    contexts: Contexts | None = None,
    keeps_draws: bool = True,
    **options: Any,
) -> Any:
    """Make a call; compute its values again when its gradients are wanted.

    Args:
        call: Computes with these tensors, by name, instead of its own.
        args: Its arguments.
        kwargs: Its keyword arguments.
        parameters: Its parameters; looked at again after the call.
        buffers: Its buffers. The second computation does not update them.
        contexts: Makes what the first and the second computation run in.
        keeps_draws: Whether random numbers are to be the same in both.
        **options: For torch's checkpoint.

    Returns:
        What the call returns.
    """
    region = _Region(call, args, kwargs, parameters, buffers)

    def entered_by_torch() -> tuple[Any, Any]:
        first, second = ([], []) if contexts is None else contexts()
        drawn: Drawn = []
        if keeps_draws:
            first.append(KeepDraws(drawn))
            second.append(RepeatDraws(drawn))
        return _All(first), _All([_autocast(), *second])

    # No arguments are passed on: torch would ask for a module torch.xla.
    with checkpoints_left():
        output = OF_TORCH(
            region.run,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=entered_by_torch,
            **options,
        )
    for _, leaf in leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
            leaf.register_hook(region.wait)
    return output


class _Region:
    """One call whose values are not all kept."""

    def __init__(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parameters: Tensors,
        buffers: Tensors,
    ) -> None:
        self._call = call
        self._given = args, kwargs
        self._parameters, self._buffers = parameters, buffers
        self._around = around()
        self._again: list[torch.Tensor] | None = None
        self._was_run = False

    def run(self) -> Any:
        """Make the call; from the second time on with what waits for a gradient."""
        if not self._was_run:
            self._was_run = True
            with entered(self._around, {}):
                return self._call(self._parameters, *self._given)
        given, self._again = self._again, None
        twins = given or _behind_barrier(self._read())
        stand_for = dict(zip(self._read(), twins, strict=True))
        left = iter(twins)
        tensors = {n: next(left) for n in (*self._parameters, *self._buffers)}
        args, kwargs = rebuild(
            self._given, lambda leaf: next(left) if torch.is_tensor(leaf) else leaf
        )
        with entered(self._around, stand_for):
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
