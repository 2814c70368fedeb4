"""Stand-ins: run a step on tensors that hold no data.

`stand_ins` makes every tensor of a step's state a placeholder of the same shape for the
time of a trace. The Python objects stay, so whatever refers to them sees the
placeholder too: tied parameters, an optimizer, a closure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from spmd._capture.prime import prime_optimizer
from spmd._capture.record import Recorded
from spmd._capture.state import StepState
from spmd._marking.attributes import copy_attributes
from spmd._marking.mark import get_sharding, remember
from spmd._meshes.mesh import Mesh
from spmd._torch_xla import trace as torch_xla_trace


@contextmanager
def stand_ins(state: StepState, mesh: Mesh) -> Iterator[None]:
    """Replace all state by placeholders; everything is put back at the end.

    The optimizer is made capturable inside, has the state that its first step creates,
    and its learning rates are placeholders too.

    Args:
        state: Model, optimizer and further tensors, on any device.
        mesh: The mesh that is traced for.

    Yields:
        Nothing.
    """
    with ExitStack() as stack:
        for module in state.modules:
            stack.enter_context(_entries_kept(module._buffers))
        optimizer = state.optimizer
        if optimizer is not None:
            stack.enter_context(_optimizer_kept(optimizer))
        tensors = _tensors(state)
        for tensor in tensors:
            stack.enter_context(_entries_kept(vars(tensor)))
        _adopt(tensors, mesh)
        for tensor in tensors:
            stack.enter_context(_hollow(tensor))
        if optimizer is not None:
            _fill(optimizer)
        yield


def _fill(optimizer: Optimizer) -> None:
    """Create the state of a first step; what that computes is dropped."""
    before = {id(tensor) for tensor in _state_tensors(optimizer)}
    prime_optimizer(optimizer)
    for group in optimizer.param_groups:
        if "lr" in group:
            group["lr"] = torch_xla_trace.placeholder((), torch.float32)
    for table in optimizer.state.values():
        for key, value in table.items():
            if isinstance(value, torch.Tensor) and id(value) not in before:
                table[key] = placeholder_like(value)


def state_made(
    record: Recorded, state: StepState
) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    """Optimizer state that a step created, with placeholders for its tensors.

    Args:
        record: The step, while its traced values are there.
        state: What it updates.

    Returns:
        Parameters, each with its state.
    """
    new = record.slots[len(record.originals) :]
    made = {id(slot.read()) for slot in new if slot.role == "optimizer"}
    found = []
    for parameter, table in state.optimizer.state.items() if state.optimizer else ():
        if any(id(value) in made for value in table.values()):
            twins = {
                key: placeholder_like(value) if id(value) in made else value
                for key, value in table.items()
            }
            found.append((parameter, twins))
    return found


def placeholder_like(tensor: torch.Tensor) -> torch.Tensor:
    """A placeholder with a tensor's shape, dtype and annotation.

    Args:
        tensor: On any device.

    Returns:
        A tensor on the XLA device that holds no data.
    """
    return copy_attributes(
        tensor, torch_xla_trace.placeholder(tensor.shape, tensor.dtype)
    )


def _tensors(state: StepState) -> list[torch.Tensor]:
    """All that a step may read or update, each once."""
    found = [parameter for _, parameter in state.parameters]
    for module in state.modules:
        found += [b for b in module._buffers.values() if b is not None]
    if state.optimizer is not None:
        found += _state_tensors(state.optimizer)
    found += state.extra.values()
    return list({id(tensor): tensor for tensor in found}.values())


def _state_tensors(optimizer: Optimizer) -> list[torch.Tensor]:
    tables = optimizer.state.values()
    return [v for t in tables for v in t.values() if isinstance(v, torch.Tensor)]


def _adopt(tensors: list[torch.Tensor], mesh: Mesh) -> None:
    """Take over specs from torch_xla, if it was used alone to annotate the state."""
    if any(get_sharding(tensor) for tensor in tensors):
        return
    for tensor in tensors:
        try:
            found = get_sharding(tensor, mesh)
        except ValueError:  # of another mesh
            continue
        if found is not None and any(found.spec):
            remember(tensor, mesh, found.spec)


@contextmanager
def _hollow(tensor: torch.Tensor) -> Iterator[None]:
    """Have a tensor hold no data inside; its values, gradient and history come back."""
    hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    twin = torch_xla_trace.placeholder(tensor.shape, tensor.dtype)
    if tensor.requires_grad and tensor.is_leaf:
        twin.requires_grad_()
    if tensor.is_leaf and tensor.grad is not None:
        twin.grad = _gradient_like(tensor.grad, tensor)
    _exchange(tensor, twin, hooks)
    try:
        yield
    finally:
        _exchange(tensor, twin, hooks)


def _gradient_like(gradient: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A placeholder that is split as the tensor is, if nothing else is known."""
    twin = placeholder_like(gradient)
    annotation = get_sharding(tensor)
    if get_sharding(twin) is None and annotation is not None:
        remember(twin, annotation.mesh, annotation.spec)
    return twin


def exchange(tensor: torch.Tensor, twin: torch.Tensor) -> None:
    """Have a tensor stand for what another stands for; its hooks stay.

    Args:
        tensor: The Python object that others refer to.
        twin: Gets what `tensor` stood for.
    """
    hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    _exchange(tensor, twin, hooks)


def _exchange(tensor: torch.Tensor, twin: torch.Tensor, hooks: tuple[Any, Any]) -> None:
    """Exchange what two Python objects stand for.

    `torch.utils.swap_tensors` would refuse a parameter that a graph or a weak reference
    holds on to, because it cannot know that the exchange is undone.
    """
    torch._C._swap_tensor_impl(tensor, twin)
    on_gradient, on_accumulated = hooks
    if tensor._backward_hooks is not None or on_gradient is not None:
        tensor._backward_hooks = on_gradient
    if on_accumulated is not None:
        tensor._post_accumulate_grad_hooks = on_accumulated


@contextmanager
def _entries_kept(table: dict[Any, Any]) -> Iterator[None]:
    before = dict(table)
    try:
        yield
    finally:
        table.clear()
        table.update(before)


@contextmanager
def _optimizer_kept(optimizer: Optimizer) -> Iterator[None]:
    """Keep hyperparameters, and which state there is."""
    with ExitStack() as stack:
        for table in (*optimizer.param_groups, *optimizer.state.values()):
            stack.enter_context(_entries_kept(table))
        stack.enter_context(_entries_kept(optimizer.state))
        yield


@contextmanager
def meta_parameters() -> Iterator[None]:
    """Build modules whose parameters have no data, while buffers keep their values.

    ``torch.device("meta")`` would drop the buffers too, and rotary tables with them. A
    model of any size is built in this context without memory, for `spmd.trace`.

    Yields:
        Nothing.

    Example::

        with spmd.meta_parameters():
            model = LlamaForCausalLM(LlamaConfig(...))
    """
    original = nn.Module.register_parameter
    moved: Any = WeakTensorKeyDictionary()

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            if param not in moved:  # one that is registered twice stays tied
                moved[param] = _to_meta(param)
            param = moved[param]
        original(self, name, param)

    nn.Module.register_parameter = register
    try:
        with _large_on_meta():
            yield
    finally:
        nn.Module.register_parameter = original


def _to_meta(parameter: nn.Parameter) -> nn.Parameter:
    twin = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    return copy_attributes(parameter, twin)


_LARGE = 2**24
"""Elements from which ``torch.empty`` gives a meta tensor: more than a causal mask over
4096 tokens has, which is the largest buffer that models make with it."""


@contextmanager
def _large_on_meta() -> Iterator[None]:
    """Have ``nn.Parameter(torch.empty(...))`` allocate nothing where it would matter.

    Small ones stay real: a buffer may be made with ``torch.empty`` and filled.
    """
    original: Callable[..., Any] = torch.empty

    def empty(*size: Any, **options: Any) -> torch.Tensor:
        if options.get("device") is None and options.get("out") is None:
            planned = original(*size, **{**options, "device": "meta"})
            if planned.numel() >= _LARGE:
                return planned
        return original(*size, **options)

    torch.empty = empty
    try:
        yield
    finally:
        torch.empty = original
