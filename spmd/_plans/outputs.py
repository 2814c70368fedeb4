"""Annotate what modules return, each time they run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from spmd._fused.output import parts_of
from spmd._marking.mark import mark_sharding
from spmd._meshes.mesh import Mesh
from spmd._names.tree import named_leaves
from spmd._plans.resolve import OutputRow


def annotate_outputs(module: nn.Module, rows: Iterable[OutputRow], mesh: Mesh) -> None:
    """Register hooks that annotate the outputs of a module and those below it.

    Args:
        module: The root; rows name modules below it, ``""`` is itself.
        rows: What a plan gives.
        mesh: The mesh.
    """
    rows = tuple(rows)
    taken = {(row.name, row.index) for row in rows}
    for row in rows:
        others = {i for name, i in taken if name == row.name and i is not None}
        _annotate(module.get_submodule(row.name), row, mesh, frozenset(others))


def _annotate(
    module: nn.Module, row: OutputRow, mesh: Mesh, others: frozenset[int]
) -> None:
    label = f"output of {row.name or type(module).__name__}"

    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        found = [t for t in _chosen(output, row, others, label) if torch.is_tensor(t)]
        fitting = [t for t in found if t.ndim == len(row.spec)]
        if found and not fitting:
            raise ValueError(
                f"{label} {list(found[0].shape)}: pattern {row.pattern!r} gives the "
                f"spec {row.spec} of {len(row.spec)} entries for {found[0].ndim} dims; "
                f"give one entry per dim"
            )
        for tensor in itertools.chain(*map(parts_of, fitting)):
            mark_sharding(tensor, mesh, row.spec, name=label)

    module.register_forward_hook(hook)


def _chosen(
    output: Any, row: OutputRow, others: frozenset[int], label: str
) -> list[Any]:
    """Leaves a row speaks of: one output's, or all but those with a row of their own.

    Of several tensors those of another rank than the spec are left alone.
    """
    if row.index is None:
        if others and isinstance(output, tuple | list):
            output = [o for i, o in enumerate(output) if i not in others]
        return [leaf for _, leaf in named_leaves(output)]
    try:
        return [leaf for _, leaf in named_leaves(output[row.index])]
    except (IndexError, KeyError, TypeError):
        raise ValueError(
            f"{label} is a {type(output).__name__}; pattern {row.pattern!r} picks "
            f"output {row.index} of it, which it does not have"
        ) from None
