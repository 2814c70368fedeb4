"""`trace`: a training step as a `Program`, without running it and without its data."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._capture.capture import recorded
from spmd._capture.record import Recorded
from spmd._capture.state import StepState
from spmd._host_spans import TRACE, span
from spmd._marking.mark import get_sharding
from spmd._marking.planning import GRADIENT, planning
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec
from spmd._names.names import call_leaves
from spmd._program.program import Program
from spmd._program.stablehlo import hlo_to_artifact
from spmd._program.value import ModuleAnnotation, Value
from spmd._runtime import init
from spmd._torch_xla import trace as torch_xla_trace
from spmd._trace.batch import batch_stand_ins
from spmd._trace.module import finish_module
from spmd._trace.scopes import Sites
from spmd._trace.stand_in import stand_ins, state_made
from spmd._trace.values import (
    as_numpy,
    input_values,
    output_values,
    spec_by_name,
    spec_on,
)
from spmd._warn import warn_user

T = TypeVar("T")


def trace(
    fn: Callable[..., Any],
    *args: Any,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    mesh: Mesh | None = None,
    extra: Mapping[str, torch.Tensor] | None = None,
    batch_spec: Any = None,
    name: str = "step",
    **kwargs: Any,
) -> Program:
    """Trace a step into a portable program; nothing is executed or allocated.

    Model, optimizer state and batch may be real or on meta (see
    `spmd.meta_parameters`), and the mesh of any size. All of them are left as they are.
    Buffers of the model that have values are kept with the program. What is in
    `spmd.PRESERVED` keeps its dims, unless `spmd.sharding_preserving` says otherwise.

    Args:
        fn: The step, as for `spmd.compile_step`.
        *args: Its arguments: tensors on any device, numpy arrays, or anything with
            ``shape`` and ``dtype``, in nested containers.
        model: The module it trains.
        optimizer: The optimizer it steps; in the program it has the state that its
            first step creates, and its learning rate is an input.
        mesh: What the specs are about. Default: the mesh of the model's annotations.
        extra: Further tensors that `fn` reads or updates, by name.
        batch_spec: How the arguments are split, as for `spmd.shard_batch`; tensors
            that are annotated keep their spec.
        name: What to call the program.
        **kwargs: Keyword arguments of `fn`.

    Returns:
        The program: module, names, roles, specs and donation.

    Raises:
        TypeError: `fn` is not callable; an array of a dtype that torch lacks.
        ValueError: No mesh given and none found; tensors that are split on another
            mesh; a batch that does not divide; a step that computes nothing.
        CaptureError: An input without a name, or state that cannot be kept.
        HostReadError: The step reads a device value on the host.

    Warns:
        UserWarning: Names buffers that have no values.
    """
    if not callable(fn):
        raise TypeError(f"trace: {fn!r} is not callable")
    init()
    state = StepState(model, optimizer, extra or {})
    program, _ = traced(
        fn, args, kwargs, state=state, mesh=mesh, batch_spec=batch_spec, name=name
    )
    _warn_of_meta(model, program.inputs)
    return program


def traced(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    state: StepState,
    mesh: Mesh | None,
    batch_spec: Any = None,
    name: str = "step",
) -> tuple[Program, Recorded]:
    """Trace a step; see `trace`.

    Args:
        fn: See `trace`.
        args: See `trace`.
        kwargs: See `trace`.
        state: What the step may read and update.
        mesh: See `trace`.
        batch_spec: See `trace`.
        name: See `trace`.

    Returns:
        The program, and what was recorded: where inputs come from, what is returned.

    Raises:
        ValueError: See `trace`.
        CaptureError: See `trace`.
        HostReadError: See `trace`.
    """
    from spmd._meshes.convert import mesh_from

    model = state.model
    mesh = _mesh_of(model) if mesh is None else mesh_from(mesh)
    kept = _buffer_values(model)
    sites = Sites(model)
    notes = _Notes(sites, mesh)
    with planning(notes.add), stand_ins(state, mesh), _no_collection():
        args, kwargs = batch_stand_ins(fn, args, kwargs, mesh=mesh, spec=batch_spec)
        call = _steady(_located(fn, sites), args, kwargs, state=state, mesh=mesh)
        with call as (record, inputs, constants):
            outputs = output_values(record, inputs, mesh)
            with span(TRACE):
                proto = torch_xla_trace.hlo_proto(record.outputs)
            record.outputs, record.originals = [], []
    with span(TRACE):
        hlo = finish_module(proto, name=name, sites=sites, inputs=inputs, mesh=mesh)
        del proto
        module, digest = _apart(hlo_to_artifact, hlo)
    read = {v.name for v in inputs}
    program = Program(
        module=module,
        mesh=mesh,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        constants={n: v for n, v in (kept | constants).items() if n in read},
        annotations=tuple(notes.found),
        versions=_versions(),
        name=name,
        module_digest=digest,
    )
    return program, record


def _located(fn: Callable[..., Any], sites: Sites) -> Callable[..., Any]:
    @functools.wraps(fn)
    def located(*args: Any, **kwargs: Any) -> Any:
        with sites.recording():
            return fn(*args, **kwargs)

    return located


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from looking for cycles: few among very many objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _apart(function: Callable[[bytes], T], data: bytes) -> T:
    """Call in a new thread, to which the C library gives memory of its own.

    What was freed since the trace began slows down the many small allocations of MLIR:
    serialising a 70B step takes 1.6 times as long among it.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(function, data).result()


class _Notes:
    """What is annotated inside the step, each once."""

    def __init__(self, sites: Sites, mesh: Mesh) -> None:
        self._sites = sites
        self._mesh = mesh
        self.found: dict[ModuleAnnotation, None] = {}

    def add(self, label: str, shape: tuple[int, ...], mesh: Mesh, spec: Spec) -> object:
        """For `planning`: gives what names the annotation in the graph."""
        if not self._sites.is_recording:
            return None
        if mesh.size != self._mesh.size:
            raise ValueError(
                f"trace: {label} {list(shape)} is split on {mesh!r}, but the program "
                f"is for {self._mesh!r}; annotate for the mesh you trace for"
            )
        is_value = self._sites.in_forward and label != GRADIENT
        if is_value and mesh == self._mesh:  # another one has no names here
            named = label.startswith("output of ")
            module = label.removeprefix("output of ") if named else self._sites.module
            self.found[ModuleAnnotation(module or label, shape, spec)] = None
        return self._sites.scope()


@contextmanager
def _steady(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    state: StepState,
    mesh: Mesh,
) -> Iterator[tuple[Recorded, list[Value], dict[str, np.ndarray]]]:
    """Record a step; again, if it was the first one and created optimizer state.

    Also gives its inputs, and the numbers written in the code.
    """
    batch, _ = call_leaves(fn, args, kwargs)
    batch_specs = [spec_on(mesh, tensor, name) for name, tensor in batch.items()]
    specs = spec_by_name(state, mesh)
    with recorded(fn, args, kwargs, state=state, batch=batch) as record:
        made = state_made(record, state)
        if not made:
            yield record, *input_values(record, batch_specs, specs)
            return
    assert state.optimizer is not None
    for parameter, table in made:
        state.optimizer.state[parameter].update(table)
    specs = spec_by_name(state, mesh)
    with recorded(fn, args, kwargs, state=state, batch=batch) as record:
        yield record, *input_values(record, batch_specs, specs)


def _mesh_of(model: nn.Module | None) -> Mesh:
    for parameter in model.parameters() if model is not None else ():
        found = get_sharding(parameter)
        if found is not None:
            return found.mesh
    raise ValueError(
        "trace: no mesh: none of the model's parameters is annotated. Give mesh=..., "
        "wrap the model with FSDPv2, or annotate it with spmd.shard_module"
    )


def _buffer_values(model: nn.Module | None) -> dict[str, np.ndarray]:
    """Values of the buffers that have some."""
    named = model.named_buffers() if model is not None else ()
    return {n: as_numpy(b) for n, b in named if b.device.type != "meta"}


def _warn_of_meta(model: nn.Module | None, inputs: Sequence[Value]) -> None:
    read = {value.name for value in inputs}
    named = model.named_buffers() if model is not None else ()
    found = [n for n, b in named if b.device.type == "meta" and n in read]
    if found:
        shown = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
        warn_user(
            f"trace: {len(found)} buffers are on meta and have no values: {shown}; "
            f"whoever runs the program must give them. Build the model in "
            f"spmd.meta_parameters() instead of torch.device('meta') to keep values"
        )


def _versions() -> dict[str, str]:
    packages = ("xla-spmd", "torch", "torch_xla", "jax", "jaxlib")
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
