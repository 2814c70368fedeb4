"""Whole modules: move them to the device, and annotate them by a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import nn

from spmd._adapt.rule import adapted_modules
from spmd._fused.rule import expert_modules, fused_modules
from spmd._marking.mark import get_sharding, mark_sharding, remember
from spmd._marking.promise import promised
from spmd._meshes.mesh import Mesh
from spmd._plans.inputs import annotate_inputs
from spmd._plans.outputs import annotate_outputs
from spmd._plans.plan import Plan, ResolvedPlan
from spmd._runtime import device_types, init, runtime
from spmd._warn import warn_user

M = TypeVar("M", bound=nn.Module)


def to_device(module: M) -> M:
    """Move a module to the XLA device, in place; with jax it waits on the CPU.

    Parameters keep their identity, so tied ones stay tied and an optimizer made before
    the move still holds them (``module.to('xla')`` replaces and unties them). Nothing
    is uploaded yet: torch_xla transfers a tensor at its first use, so that an
    annotation made in between uploads only pieces.

    Args:
        module: On the CPU or already on the device.

    Returns:
        The same module.

    Raises:
        ValueError: A parameter on the meta device.
        RuntimeError: A parameter of a loss that was computed on the CPU and is still
            alive, or SPMD mode cannot be switched on any more, see `spmd.init`.
    """
    init()
    for name, tensor in named_tensors(module):
        if tensor.device.type == "meta" and promised(tensor) is None:
            raise ValueError(
                f"to_device: {name} {list(tensor.shape)} is on the meta device and has "
                f"no values; call module.to_empty(device='cpu') and initialise it first"
            )
    if runtime() == "jax":
        return module
    from spmd._torch_xla import seam

    device = seam.device()
    for name, parameter in module.named_parameters():
        if parameter.device.type != "xla":
            _move(parameter, device, name)
    moved: dict[int, torch.Tensor] = {}
    for child in module.modules():
        for key, buffer in child._buffers.items():
            if buffer is None or buffer.device.type == "xla":
                continue
            if id(buffer) not in moved:
                moved[id(buffer)] = buffer.detach().to(device)
            child._buffers[key] = moved[id(buffer)]
    return module


def _move(parameter: nn.Parameter, device: torch.device, name: str) -> None:
    """Put the data on the device and keep the Python object, its hooks and gradient.

    As `torch.utils.swap_tensors`, which however refuses an object with weak references
    (those of `nn.LSTM` to its weights, say) although they go on pointing to it.
    """
    # One use is Python's own, one the node that accumulates the gradient.
    if parameter._use_count() > 2:  # pyright: ignore[reportAttributeAccessIssue]
        raise RuntimeError(
            f"to_device: {name} {list(parameter.shape)} cannot be moved while a loss "
            f"or output that was computed from it on the CPU is alive; delete that, or "
            f"move the module before running it"
        )
    gradient = parameter.grad
    hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
    moved = nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
    parameter.grad = None
    torch._C._swap_tensor_impl(parameter, moved)
    parameter._backward_hooks, parameter._post_accumulate_grad_hooks = hooks
    if gradient is not None:
        parameter.grad = gradient.to(device)


def named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, then buffers, each once.

    Args:
        module: Any module.

    Yields:
        Name and tensor; a tied parameter comes under its first name.
    """
    yield from module.named_parameters()
    yield from module.named_buffers()


def tied_names(module: nn.Module) -> list[tuple[str, ...]]:
    """Names that share one parameter.

    Args:
        module: Any module.

    Returns:
        A group of names for each parameter that has several.
    """
    groups: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [tuple(names) for names in groups.values() if len(names) > 1]


def tie_again(module: nn.Module, groups: list[tuple[str, ...]]) -> None:
    """Make names share one parameter again, the first one's, in place.

    Args:
        module: The module `tied_names` was asked about.
        groups: What it answered.
    """
    for first, *others in groups:
        for name in others:
            path, _, key = name.rpartition(".")
            module.get_submodule(path)._parameters[key] = module.get_parameter(first)


def shard_module(module: M, mesh: Mesh, plan: Plan, *, strict: bool = False) -> M:
    """Annotate a module's parameters, buffers, inputs and outputs by a plan, in place.

    Args:
        module: On the XLA device (see `to_device`) or on meta, where buffers may have
            values (see `meta_parameters`).
        mesh: The mesh.
        plan: Patterns for parameters and for what modules take and give.
        strict: Raise where a dim does not divide instead of padding.

    Returns:
        The same module. A warning lists parameters that no pattern covers.

    Raises:
        ValueError: A parameter still on the CPU, a pattern that matches nothing, a
            wrong spec, or a tensor that already has another spec.
    """
    from spmd._meshes.convert import mesh_from

    mesh = mesh_from(mesh)
    take_apart(module, plan)
    tensors = dict(_all_names(module))
    planned = any(p.device.type == "meta" for p in module.parameters())
    for name, tensor in tensors.items():
        kept = planned and not isinstance(tensor, nn.Parameter)
        if tensor.device.type not in device_types() and not kept:
            raise ValueError(
                f"shard_module: {name} {list(tensor.shape)} is still on "
                f"{tensor.device}; call spmd.to_device(module) first"
            )
    resolved = resolve_plan(module, mesh, plan, strict=strict)
    for row in resolved.parameters:
        if row.pattern is not None:
            tensor = tensors[row.name]
            if tensor.device.type == "cpu":  # a buffer with values beside meta
                remember(tensor, mesh, row.spec)
            else:
                mark_sharding(tensor, mesh, row.spec, strict=strict, name=row.name)
    _warn_uncovered(resolved, tensors)
    annotate_outputs(module, resolved.outputs, mesh)
    annotate_inputs(module, resolved.inputs, mesh)
    return module


def take_apart(module: nn.Module, plan: Plan) -> None:
    """Have modules in the form that a plan speaks of, in place.

    Args:
        module: Its parameters on any device, not annotated yet.
        plan: Names them; most plans name none.

    Raises:
        ValueError: A weight that cannot be taken apart, as one that is tied, or a
            module that cannot be adapted as the plan says.
    """
    names = [name for name, _ in _all_names(module)]
    modules = [name for name, _ in module.named_modules()]
    fused = fused_modules(plan.parts, names, modules)
    if fused:
        from spmd._fused.fused import split_fused

        split_fused(module, fused)
    experts = expert_modules(plan.parts, modules)
    if experts:
        from spmd._experts.experts import split_experts

        split_experts(module, experts)
    adapted = adapted_modules(plan.parts, modules)
    if adapted:
        from spmd._adapt.adapt import adapt

        adapt(module, adapted)


def resolve_plan(
    module: nn.Module, mesh: Mesh, plan: Plan, *, strict: bool = False
) -> ResolvedPlan:
    """What a plan gives each tensor of a module.

    Args:
        module: Any module, on any device.
        mesh: The mesh.
        plan: Patterns for parameters and module outputs.
        strict: Raise where a dim does not divide.

    Returns:
        One row per parameter, buffer and annotated output.

    Raises:
        ValueError: See `Plan.resolve`.
    """
    tensors = dict(_all_names(module))
    resolved = plan.resolve(
        mesh,
        {name: tuple(t.shape) for name, t in tensors.items()},
        [name for name, _ in module.named_modules()],
        strict=strict,
        itemsize={name: t.element_size() for name, t in tensors.items()},
    )
    # Of the names of a tied tensor the table shows those that a pattern matches.
    decided = {id(tensors[r.name]) for r in resolved.parameters if r.pattern}
    first = {name for name, _ in named_tensors(module)}
    rows = [
        row
        for row in resolved.parameters
        if row.pattern or (row.name in first and id(tensors[row.name]) not in decided)
    ]
    return dataclasses.replace(resolved, parameters=tuple(rows))


def _all_names(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _warn_uncovered(resolved: ResolvedPlan, tensors: dict[str, torch.Tensor]) -> None:
    parameters = {n for n, t in tensors.items() if isinstance(t, nn.Parameter)}
    left = [n for n in resolved.uncovered if n in parameters]
    left = [n for n in left if get_sharding(tensors[n]) is None]
    if not left:
        return
    size = sum(tensors[n].numel() * tensors[n].element_size() for n in left)
    shown = ", ".join(left[:4]) + (", ..." if len(left) > 4 else "")
    warn_user(
        f"shard_module: {len(left)} parameters ({size} bytes) match no pattern and "
        f"stay whole on every device: {shown}. Give them a pattern, with None for each "
        f"dim to keep them whole on purpose"
    )
