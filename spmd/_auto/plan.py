"""`auto_plan`: a plan for a Hugging Face model, from its config alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from spmd._auto.layout import Axes, choose_axes
from spmd._auto.model import build_on_meta, read_model
from spmd._auto.place import place
from spmd._auto.rows import Rows, Said, plan_parts
from spmd._auto.styles import styles
from spmd._fused.rule import taken_apart
from spmd._meshes.mesh import Mesh
from spmd._plans.module import tied_names
from spmd._plans.plan import Plan, PlannedModel

MIN_SHARD_ELEMENTS = 4096
"""Parameters with fewer elements are not split over fsdp, as under `FSDPv2`."""


def auto_plan(
    model: Any,
    mesh: Mesh,
    *,
    fsdp: str | None = "fsdp",
    tensor: str | None = "tensor",
    expert: str | None = "expert",
    sequence_parallel: bool = False,
    min_shard_elements: int = MIN_SHARD_ELEMENTS,
) -> Plan:
    """Plan how a Hugging Face model is split over a mesh.

    The model's own `tp_plan` says which matrices are split by columns and which by
    rows; where it has none, attention and MLP are recognised by their form. Every
    parameter is split over `fsdp` on a dim that `tensor` leaves free, and every axis
    for data splits the batch. Nothing is computed and nothing is moved: apply the plan
    with `shard_module`, after ``plan.explain()`` has shown it. A plan of one's own
    takes precedence: ``Plan({...}) | auto_plan(model, mesh)``.

    Args:
        model: A model on any device, or a `transformers.PretrainedConfig`.
        mesh: The mesh.
        fsdp: Axis that splits every parameter.
        tensor: Axis that splits heads, inner features and the vocabulary.
        expert: Axis that splits the experts of a mixture.
        sequence_parallel: Split activations between layers along the sequence, over
            `tensor`.
        min_shard_elements: Parameters with fewer elements stay whole over `fsdp`.

    Returns:
        A plan in parts, each named after what decided it.

    Raises:
        TypeError: Neither a module with a config, nor a config.
        ValueError: A size of `tensor` that the heads or the inner features do not
            take (the message lists sizes that fit), an axis that the mesh does not
            have or that is given twice, or a config that no model belongs to.

    Example::

        mesh = spmd.Mesh({"fsdp": 2, "tensor": 4})
        plan = spmd.auto_plan(LlamaConfig(), mesh)
        plan.explain()
    """
    from spmd._meshes.convert import mesh_from

    axes = choose_axes(
        mesh_from(mesh),
        fsdp=fsdp,
        tensor=tensor,
        expert=expert,
        sequence_parallel=sequence_parallel,
        min_shard_elements=min_shard_elements,
    )
    root = _root(model)
    found = read_model(root)
    chosen, notes = styles(found)
    rows = place(found, chosen, axes)
    rows.notes += [Said(note, f"tp_plan of {found.kind}") for note in notes]
    shapes, itemsize = _shapes(root)
    modules = tuple(name for name, _ in root.named_modules())
    fused = {name: said.what for name, said in rows.fused.items()}
    experts = {name: said.what for name, said in rows.experts.items()}
    after, modules_after = taken_apart(fused, shapes, modules, experts)
    _share_ties(rows, root)
    _add_rest(rows, after, axes)
    parts = plan_parts(rows, after, modules_after)
    again = frozenset(name for first, *rest in tied_names(root) for name in rest)
    sizes = _sizes_after(itemsize, after)
    made_for = PlannedModel(axes.mesh, shapes, modules, sizes, again)
    return Plan._of(parts, made_for)


def _root(model: Any) -> nn.Module:
    """The model itself, out of a wrapper, or built on meta from a config."""
    if isinstance(model, nn.Module):
        root = model.__dict__.get("_wrapped", model)
        if getattr(root, "config", None) is None:
            raise TypeError(
                f"auto_plan: {type(root).__name__} has no config, so it is no model of "
                f"transformers; write a Plan of patterns for it"
            )
        return root
    if hasattr(model, "model_type") and hasattr(model, "to_dict"):
        return build_on_meta(model)
    raise TypeError(
        f"auto_plan: a model or a config of transformers is needed, got "
        f"{type(model).__name__}"
    )


def _shapes(root: nn.Module) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    tensors: dict[str, torch.Tensor] = {}
    tensors.update(root.named_parameters(remove_duplicate=False))
    tensors.update(root.named_buffers(remove_duplicate=False))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return shapes, {name: tensor.element_size() for name, tensor in tensors.items()}


def _sizes_after(
    itemsize: dict[str, int], shapes: dict[str, tuple[int, ...]]
) -> dict[str, int]:
    """Bytes per element of parts too, which have that of what they are part of."""
    sizes = dict(itemsize)
    for name in shapes:
        owner = name
        while name not in sizes and owner:
            owner = owner.rpartition(".")[0]
            inside = (s for n, s in itemsize.items() if n.startswith(f"{owner}."))
            size = next(inside, None)
            if size is not None:
                sizes[name] = size
    return sizes


def _share_ties(rows: Rows, root: nn.Module) -> None:
    """Give all names of one parameter the spec of the one that has one."""
    decided: dict[int, Said[Any]] = {}
    names = list(root.named_parameters(remove_duplicate=False))
    for name, parameter in names:
        if name in rows.parameters:
            decided.setdefault(id(parameter), rows.parameters[name])
    for name, parameter in names:
        if id(parameter) in decided:
            rows.parameters[name] = decided[id(parameter)]


def _add_rest(rows: Rows, shapes: dict[str, tuple[int, ...]], axes: Axes) -> None:
    """Split over fsdp what nobody spoke of; small tensors stay whole."""
    for name, shape in shapes.items():
        if name in rows.parameters:
            continue
        spec = axes.parameter(shape)
        if any(spec):
            rows.parameters[name] = Said(spec, "the rest, over fsdp")
        else:
            small = math.prod(shape) < axes.min_elements
            source = "small, whole" if small else "the rest, whole"
            rows.parameters[name] = Said(spec, source)
