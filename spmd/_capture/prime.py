"""Make an optimizer capturable: state before the first step, nothing on the host.

An optimizer creates its state inside its first step, so a step compiled then has other
inputs than the second one and would be compiled twice.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from spmd._marking.optimizer import shard_optimizer


def prime_optimizer(optimizer: Optimizer) -> Optimizer:
    """Create an optimizer's state now, exactly as its first step would.

    Step counts move to the device (``capturable=True``), so that a compiled step can
    advance them. Parameters are not touched. State takes the parameters' specs.

    Args:
        optimizer: Over parameters on the XLA device. State it has is kept.

    Returns:
        The same optimizer. One whose class does not separate creating state from using
        it is left as it is; its first two steps are then compiled separately.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            # torch's Adadelta takes it, and then refuses to run on an XLA device; it
            # counts steps but makes no use of them.
            group["capturable"] = not isinstance(optimizer, torch.optim.Adadelta)
        if "foreach" in group:
            group["foreach"] = False
    initialise = getattr(optimizer, "_init_group", None)
    if initialise is not None:
        with _zero_gradients(optimizer), torch.no_grad():
            for group in optimizer.param_groups:
                _initialise(initialise, group)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if state is not None:
                if "capturable" in group:
                    _to_device(parameter, state)
                _start_momentum(optimizer, group, parameter)
    return shard_optimizer(optimizer)


def _initialise(initialise: Any, group: dict[str, Any]) -> None:
    wanted = list(inspect.signature(initialise).parameters)[1:]
    initialise(group, *([] for _ in wanted))


@contextlib.contextmanager
def _zero_gradients(optimizer: Optimizer) -> Iterator[None]:
    """Stand-ins for missing gradients: `_init_group` skips parameters without one."""
    lent = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
                lent.append(parameter)
    try:
        yield
    finally:
        for parameter in lent:
            parameter.grad = None


def _to_device(parameter: torch.Tensor, state: dict[str, Any]) -> None:
    for key, value in state.items():
        if not isinstance(value, torch.Tensor) or value.device == parameter.device:
            continue
        if parameter.device.type == "xla" and value.ndim == 0:
            from spmd._torch_xla import graph as torch_xla_graph

            state[key] = torch_xla_graph.scalar(value.item(), value.dtype)
        else:
            state[key] = value.to(parameter.device).clone()


def _start_momentum(
    optimizer: Optimizer, group: dict[str, Any], parameter: torch.Tensor
) -> None:
    """SGD's first step copies the gradient: momentum * 0 + gradient is the same."""
    if not isinstance(optimizer, torch.optim.SGD) or not parameter.requires_grad:
        return
    state = optimizer.state[parameter]
    if not group["momentum"] or group["dampening"]:
        return
    if state.get("momentum_buffer") is None:
        with torch.no_grad():
            state["momentum_buffer"] = torch.zeros_like(parameter)


_FACTOR = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}


@contextlib.contextmanager
def tensor_factors() -> Iterator[None]:
    """Have ``p.add_(g, alpha=-lr)`` leave the rate on the device.

    torch reads a factor that is a tensor on the host, as most of its optimizers have
    it do with their learning rate. Also has ``torch.addmm`` with factors, which Muon
    uses, stay on the device. The functions are replaced for the time: a mode would see
    every call of every function. One that is there sees those that stand for methods;
    `original_of` says for which.

    Yields:
        Nothing.
    """
    with contextlib.ExitStack() as stack:
        for name in _FACTOR:
            for owner, each in (
                (torch, name),
                (torch.Tensor, name),
                (torch.Tensor, f"{name}_"),
            ):
                new = _multiplying(getattr(owner, each), each)
                stack.enter_context(_replaced(owner, each, new))
        stack.enter_context(_replaced(torch, "addmm", _addmm(torch.addmm)))
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    before = vars(owner).get(name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        if before is None:  # a method of the class below torch.Tensor
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _multiplying(original: Any, name: str) -> Any:
    """A function that multiplies by a factor on the device."""
    kind = name.removesuffix("_")
    key = _FACTOR[kind]
    add: Any = torch.Tensor.add_ if name.endswith("_") else torch.Tensor.add

    def multiplying(*args: Any, **options: Any) -> Any:
        factor = options.get(key)
        if not isinstance(factor, torch.Tensor) or factor.device.type != "xla":
            return original(*args, **options)
        del options[key]
        if key == "alpha":
            return original(args[0], args[1] * factor, **options)
        tensor, one, two = args
        product = one * two if kind == "addcmul" else one / two
        return add(tensor, product * factor, **options)

    return _instead_of(original, multiplying)


def _instead_of(original: Any, new: Any) -> Any:
    new.original = original
    return new


def original_of(func: Any) -> Any:
    """What one of the functions of `tensor_factors` stands for.

    Args:
        func: Any function.

    Returns:
        torch's own function, or the one that was given.
    """
    return getattr(func, "original", func)


def _addmm(original: Any) -> Any:
    """A product that torch_xla has on the device without factors only."""

    def addmm(
        given: torch.Tensor,
        one: torch.Tensor,
        two: torch.Tensor,
        *,
        alpha: float = 1,
        beta: float = 1,
        **options: Any,
    ) -> torch.Tensor:
        if alpha == 1 and beta == 1:
            return original(given, one, two, **options)
        if given.device.type != "xla":
            return original(given, one, two, alpha=alpha, beta=beta, **options)
        return torch.add(given * beta, one @ two * alpha, **options)

    return _instead_of(original, addmm)
