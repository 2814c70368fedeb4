"""What enters a wrapped module and what leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import spmd
from spmd import Mesh
from spmd._marking.mark import mark_sharding
from spmd._names.tree import named_leaves
from spmd._runtime import device_types
from spmd._warn import warn_user


def check_inputs(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mesh: Mesh,
    *,
    axes: tuple[str, ...],
    warned: set[str],
) -> None:
    """Refuse inputs that cannot be split, name those that are not.

    Args:
        args: Positional arguments of the module.
        kwargs: Its keyword arguments.
        mesh: The mesh.
        axes: Axes that split the batch.
        warned: Arguments warned of before; added to.

    Raises:
        ValueError: An input on the CPU, or a batch smaller than the number of devices
            that split it.
    """
    ways = mesh.axis_size(axes)
    for i, (name, leaf) in enumerate(_inputs(args, kwargs)):
        label = f"input {name} {list(leaf.shape)}"
        if leaf.device.type not in device_types():
            raise ValueError(
                f"FSDPv2: {label} is on {leaf.device}; give it to the devices with "
                f"spmd.shard_batch(batch, mesh) or a spmd.ShardedLoader"
            )
        if i == 0 and leaf.shape[0] < ways:
            raise ValueError(
                f"FSDPv2: {label} has a batch of {leaf.shape[0]}, smaller than the "
                f"{ways} devices that split it over {axes}; use at least {ways} rows, "
                f"shard_batch(..., pad=True), or model.module(...) to run it unsplit"
            )
        if name not in warned and _is_whole(leaf):
            warned.add(name)
            warn_user(
                f"FSDPv2: {label} has no spec, so every device holds all of it; use "
                f"spmd.shard_batch(batch, mesh) or a spmd.ShardedLoader"
            )


def batch_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Rows of the first tensor given to a module.

    Args:
        args: Positional arguments of the module.
        kwargs: Its keyword arguments.

    Returns:
        None where no tensor is given.
    """
    return next((leaf.shape[0] for _, leaf in _inputs(args, kwargs)), None)


def shard_output(
    output: Any, mesh: Mesh, *, axes: tuple[str, ...], rows: int | None, name: str
) -> None:
    """Split every batch-major tensor in a module's output on its leading dim.

    Args:
        output: A tensor or any container of them, left as it is.
        mesh: The mesh.
        axes: Axes that split the batch.
        rows: Size of the batch; a tensor of another leading size is left to the
            compiler. None: any that divides is the batch.
        name: What to call the module.
    """
    ways = mesh.axis_size(axes)
    for path, leaf in named_leaves(output):
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
            continue
        size = leaf.shape[0]
        batch_major = size % ways == 0 if rows is None else size == rows >= ways
        if batch_major and spmd.get_sharding(leaf) is None:
            spec = (axes, *[None] * (leaf.ndim - 1))
            mark_sharding(leaf, mesh, spec, name=f"output{path} of {name}")


def _inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    named = [(f"args[{i}]", value) for i, value in enumerate(args)]
    for name, value in (*named, *kwargs.items()):
        for path, leaf in named_leaves(value, name):
            if isinstance(leaf, torch.Tensor) and leaf.ndim > 0:
                yield path, leaf


def _is_whole(leaf: torch.Tensor) -> bool:
    """Whether this is data that nobody has split, or is about to."""
    if leaf.device.type != "xla" or leaf.shape[0] == 1:
        return False
    if spmd.get_sharding(leaf) is not None:
        return False
    from spmd._torch_xla import graph as torch_xla_graph
    from spmd._torch_xla import seam

    computed = torch_xla_graph.needs_execution([leaf])[0]
    return not computed and seam.sharding_of(leaf) is None
