"""torch's `checkpoint` on XLA devices, which models call by themselves.

torch 2.9 asks for a module ``torch.xla`` there and fails. torch_xla has a function of
its own, which writes to its arguments and knows no keywords. Both names do here what
``remat="full"`` does.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.utils import stateless
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import noop_context_fn

from spmd._names.rebuild import leaves
from spmd._remat.region import OF_TORCH, Tensors, computed_again
from spmd._remat.surrounding import is_dropped
from spmd._torch_xla import seam


def install() -> None:
    """Have the functions of torch and torch_xla call `checkpoint` on XLA devices."""
    # What torch's function looks up and calls, so that names imported earlier follow.
    setattr(OF_TORCH, "__dynamo_disable", checkpoint)
    seam.replace_checkpoint(checkpoint)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: Any = noop_context_fn,
    debug: bool = False,
    **kwargs: Any,
) -> Any:
    """See `torch.utils.checkpoint.checkpoint`.

    On XLA devices the parameters and buffers of the modules that are called are read
    again too, so that weights that were gathered need not stay.

    Args:
        function: A module, a method of one, or what calls some.
        *args: For it.
        use_reentrant: On XLA devices both are one.
        preserve_rng_state: Whether random numbers are to be the same again.
        context_fn: Makes what the first and the second computation run in.
        debug: Only where no tensor is on an XLA device.
        **kwargs: For the function, and torch's further options.

    Returns:
        What the function returns.

    Raises:
        ValueError: `debug` on an XLA device.
    """
    options = {n: kwargs.pop(n) for n in _OPTIONS & kwargs.keys()}
    called = _Called(function, args, kwargs)
    if not called.is_on_xla():
        options |= {"use_reentrant": use_reentrant, "context_fn": context_fn}
        options |= {"preserve_rng_state": preserve_rng_state, "debug": debug}
        return _of_torch()(function, *args, **options, **kwargs)
    if is_dropped() or not torch.is_grad_enabled():
        return function(*args, **kwargs)
    if debug:
        raise ValueError(
            "checkpoint: debug=True is not to be had on XLA devices; leave it out"
        )
    return called.computed_again(context_fn, preserve_rng_state, options)


_OPTIONS = frozenset({"determinism_check", "early_stop"})


@functools.cache
def _of_torch() -> Any:
    import torch._dynamo

    return torch._dynamo.disable(OF_TORCH, True, wrapping=False)


class _Called:
    """A function with its arguments, and the modules that it calls."""

    def __init__(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        while isinstance(function, functools.partial):
            args = (*function.args, *args)
            kwargs = {**function.keywords, **kwargs}
            function = function.func
        self._function, self._args, self._kwargs = function, args, kwargs
        self._values = [leaf for _, leaf in leaves((args, kwargs))]
        named = [x for x in [_owner(function), *self._values] if _is_module(x)]
        self._is_exact = bool(named)
        self._modules = _outermost(named or _modules_seen(function))

    def is_on_xla(self) -> bool:
        """Whether it computes on an XLA device."""
        own = (t for m in self._modules for t in m.parameters())
        tensors = [x for x in self._values if isinstance(x, torch.Tensor)]
        return any(t.device.type == "xla" for t in (*tensors, *own))

    def computed_again(
        self, context_fn: Any, keeps_draws: bool, options: dict[str, Any]
    ) -> Any:
        """Call it, and again in the backward pass."""
        parameters = self._tensors(nn.Module.named_parameters)
        buffers = self._tensors(nn.Module.named_buffers)

        def contexts() -> tuple[list[Any], list[Any]]:
            first, second = context_fn()
            used = [] if self._is_exact else [_Used(parameters)]
            return [first, *used], [second]

        def call(tensors: Tensors, args: Any, kwargs: Any) -> Any:
            if tensors is parameters:
                return self._function(*args, **kwargs)
            with ExitStack() as stack:
                for i, module in enumerate(self._modules):
                    stack.enter_context(_instead(module, tensors, f"{i}."))
                return self._function(*args, **kwargs)

        return computed_again(
            call,
            self._args,
            self._kwargs,
            parameters,
            buffers,
            contexts=contexts,
            keeps_draws=keeps_draws,
            **options,
        )

    def _tensors(self, named: Any) -> dict[str, torch.Tensor]:
        found = enumerate(self._modules)
        return {f"{i}.{n}": t for i, module in found for n, t in named(module)}


def _instead(
    module: nn.Module, tensors: Tensors, prefix: str
) -> AbstractContextManager[Any]:
    own = {
        n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)
    }
    return stateless._reparametrize_module(module, own, tie_weights=True)


def _is_module(value: Any) -> bool:
    return isinstance(value, nn.Module)


def _owner(function: Any) -> Any:
    """The module that a function is, or is a method of."""
    return getattr(function, "__self__", function)


def _outermost(modules: list[nn.Module]) -> list[nn.Module]:
    inside = {id(c) for m in modules for c in m.modules() if c is not m}
    return [*{id(m): m for m in modules if id(m) not in inside}.values()]


def _modules_seen(function: Any, depth: int = 3) -> list[nn.Module]:
    """Modules that a function written in Python can name."""
    if _is_module(_owner(function)):
        return [_owner(function)]
    if isinstance(function, functools.partial):
        parts: Any = (function.func, *function.args, *function.keywords.values())
        return [m for part in parts for m in _modules_seen(part, depth)]
    if not isinstance(function, types.FunctionType) or not depth:
        return []
    try:
        names = inspect.getclosurevars(function)
    except ValueError:  # a name without a value yet
        return []
    seen = (*names.nonlocals.values(), *names.globals.values())
    values = [leaf for _, leaf in leaves(list(seen))]
    return [m for value in values for m in _modules_seen(value, depth - 1)]


class _Used(TorchDispatchMode):
    """Leaves in a table those tensors that were computed with."""

    def __init__(self, table: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._table = table
        self._used: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self._used.update(id(leaf) for _, leaf in leaves((args, kwargs)))
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for name in [n for n, t in self._table.items() if id(t) not in self._used]:
            del self._table[name]
