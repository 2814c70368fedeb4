"""`compile_step`: trace a training step once, then run the compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._capture.prime import prime_optimizer
from spmd._capture.state import StepState
from spmd._meshes.mesh import Mesh
from spmd._replay.replay import CompiledStep
from spmd._runtime import init
from spmd._runtime import runtime as active_runtime
from spmd._warn import warn_user

if TYPE_CHECKING:
    from spmd._jax.step import JaxStep


def compile_step(
    fn: Callable[..., Any],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    extra: Mapping[str, torch.Tensor] | None = None,
    max_graphs: int = 4,
    donate: bool = True,
    runtime: Literal["torch_xla", "jax", "auto"] | None = None,
    mesh: Mesh | None = None,
    options: Mapping[str, Any] | None = None,
) -> CompiledStep | JaxStep:
    """Trace a training step once and run the compiled graph from then on.

    Parameters, buffers, gradients kept between calls, optimizer state, the random seed
    and learning rates are inputs of the graph, and what the step changes comes out of
    it. Between calls the model and the optimizer hold the current values. Python code
    in `fn` runs only while it is traced. What is in `spmd.PRESERVED` keeps its dims;
    see `spmd.sharding_preserving`, also for how to switch that off.

    Args:
        fn: The step, e.g. forward, ``loss.backward()``, ``optimizer.step()``,
            ``optimizer.zero_grad()``, return the loss. Learning-rate schedulers are
            stepped outside it.
        model: The module it trains, on the XLA device.
        optimizer: The optimizer it steps; made capturable and given its state now.
        extra: Further device tensors that `fn` reads or updates, by name.
        max_graphs: How many variants (batch shapes, modes) may be compiled.
        donate: Let the graph reuse the memory of state that it replaces. Another
            tensor that shares such memory (a ``p.detach()`` kept from before) cannot
            be read afterwards. On jax it always is.
        runtime: What executes: ``"torch_xla"``, ``"jax"`` (the state moves to jax's
            devices at the first call), or ``"auto"``, which is jax where it sees a GPU
            or TPU. Default: what `spmd.init` chose.
        mesh: jax only: what the specs are about. Default: the mesh of the model's
            annotations.
        options: jax only: XLA flags by name, passed as compile options.

    Returns:
        A callable with the signature of `fn`.

    Raises:
        TypeError: `fn` is not callable.
        ValueError: Parameters that are not on the XLA device, `max_graphs` < 1, or
            `options` without jax.

    Example::

        step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
        for batch in spmd.ShardedLoader(loader, mesh):
            loss = step(batch)
    """
    if not callable(fn):
        raise TypeError(f"compile_step: {fn!r} is not callable")
    if max_graphs < 1:
        raise ValueError(f"compile_step: max_graphs={max_graphs}; at least 1 is needed")
    init()
    if _chosen(runtime) == "jax":
        from spmd._jax.step import JaxStep

        state = StepState(model, optimizer, extra or {})
        return JaxStep(fn, state, max_graphs=max_graphs, mesh=mesh, options=options)
    if options:
        raise ValueError(
            f"compile_step: options={dict(options)!r} are compile options of jax; with "
            f"torch_xla set XLA_FLAGS before it starts, or use runtime='jax'"
        )
    _check_on_device(model, optimizer)
    if optimizer is not None:
        prime_optimizer(optimizer)
    state = StepState(model, optimizer, extra or {})
    return CompiledStep(fn, state, max_graphs=max_graphs, donate=donate)


def _chosen(wanted: str | None) -> str:
    if wanted not in (None, "torch_xla", "jax", "auto"):
        raise ValueError(
            f"compile_step: runtime={wanted!r}; 'torch_xla', 'jax' or 'auto' is needed"
        )
    if wanted is None or active_runtime() == "jax":
        return active_runtime()
    if wanted == "auto":
        from spmd._pjrt import processes as pjrt_processes

        return "jax" if pjrt_processes.sees_accelerator() else "torch_xla"
    return wanted


def _check_on_device(model: nn.Module | None, optimizer: Optimizer | None) -> None:
    named = list(model.named_parameters()) if model is not None else []
    known = {id(p) for _, p in named}
    for name, parameter in named:
        if parameter.device.type != "xla":
            raise ValueError(
                f"compile_step: parameter {name} {list(parameter.shape)} is on "
                f"{parameter.device}; call spmd.to_device(model) first"
            )
    strangers = []
    for g, group in enumerate(optimizer.param_groups if optimizer else []):
        for i, parameter in enumerate(group["params"]):
            if parameter.device.type != "xla":
                raise ValueError(
                    f"compile_step: parameter {i} of the optimizer's group {g} is on "
                    f"{parameter.device}; build the optimizer from the moved model"
                )
            if model is not None and known and id(parameter) not in known:
                strangers.append(f"parameter {i} {list(parameter.shape)} of group {g}")
    if strangers:
        warn_user(
            f"compile_step: {len(strangers)} of the optimizer's parameters are none of "
            f"the model's: {', '.join(strangers[:3])}"
        )
