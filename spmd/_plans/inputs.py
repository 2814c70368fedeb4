"""Annotate what modules are given, each time they run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from spmd._marking.mark import mark_sharding
from spmd._meshes.mesh import Mesh
from spmd._names.tree import named_leaves
from spmd._plans.resolve import InputRow


def annotate_inputs(module: nn.Module, rows: Iterable[InputRow], mesh: Mesh) -> None:
    """Register hooks that annotate what a module and those below it are given.

    The module gets values of its own that are annotated: the caller's, which others may
    want split in another way, stay as they are.

    Args:
        module: The root; rows name modules below it, ``""`` is itself.
        rows: What a plan gives.
        mesh: The mesh.
    """
    of: dict[str, list[InputRow]] = {}
    for row in rows:
        of.setdefault(row.name, []).append(row)
    for name, own in of.items():
        _annotate(module.get_submodule(name), own, mesh)


def _annotate(module: nn.Module, rows: list[InputRow], mesh: Mesh) -> None:
    label = f"input of {rows[0].name or type(module).__name__}"
    picked = {row.index: row for row in rows if row.index is not None}
    rest = next((row for row in rows if row.index is None), None)

    def hook(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = list(args)
        for index, row in picked.items():
            if index >= len(given) or not torch.is_tensor(given[index]):
                raise ValueError(
                    f"{label}: pattern {row.pattern!r} picks positional argument "
                    f"{index}, but the module was called with {len(given)} of them"
                    f"{', and that is no tensor' if index < len(given) else ''}"
                )
            if given[index].ndim != len(row.spec):
                raise ValueError(_rank_message(label, row, given[index]))
            given[index] = _marked(given[index], row, mesh, label)
        if rest is None:
            return tuple(given), kwargs
        found = [
            leaf
            for _, leaf in named_leaves([given, kwargs])
            if isinstance(leaf, torch.Tensor)
        ]
        if found and not any(t.ndim == len(rest.spec) for t in found):
            raise ValueError(_rank_message(label, rest, found[0]))
        for i, value in enumerate(given):
            if i not in picked:
                given[i] = _fitting(value, rest, mesh, label)
        return tuple(given), {
            key: _fitting(value, rest, mesh, label) for key, value in kwargs.items()
        }

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _fitting(value: Any, row: InputRow, mesh: Mesh, label: str) -> Any:
    """The value, annotated if it is a tensor of the spec's rank."""
    if isinstance(value, torch.Tensor) and value.ndim == len(row.spec):
        return _marked(value, row, mesh, label)
    return value


def _marked(
    tensor: torch.Tensor, row: InputRow, mesh: Mesh, label: str
) -> torch.Tensor:
    return mark_sharding(tensor.clone(), mesh, row.spec, name=label)


def _rank_message(label: str, row: InputRow, tensor: torch.Tensor) -> str:
    return (
        f"{label} {list(tensor.shape)}: pattern {row.pattern!r} gives the spec "
        f"{row.spec} of {len(row.spec)} entries for {tensor.ndim} dims; give one entry "
        f"per dim"
    )
