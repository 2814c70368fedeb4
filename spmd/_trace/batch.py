"""The arguments of a traced step: placeholders, split as a batch is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from spmd._batches.batch import plan_batch, send
from spmd._batches.leaf import as_tensor
from spmd._marking.attributes import copy_attributes
from spmd._marking.mark import get_sharding
from spmd._meshes.mesh import Mesh
from spmd._names.names import by_parameter
from spmd._names.rebuild import leaves, rebuild
from spmd._torch_xla import trace as torch_xla_trace
from spmd._warn import warn_user


def batch_stand_ins(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    mesh: Mesh,
    spec: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put placeholders for the tensors in a call's arguments.

    Args:
        fn: What is called.
        args: Positional arguments.
        kwargs: Keyword arguments.
        mesh: The mesh.
        spec: As for `spmd.shard_batch`. By key: of the one argument, or of several by
            the name of `fn`'s parameter.

    Returns:
        Arguments of the same structure.

    Raises:
        TypeError: An array of a dtype that torch lacks.
        ValueError: A batch that does not divide.
    """
    described = rebuild((args, kwargs), _describe)
    given = by_parameter(fn, *described)
    batch = next(iter(given.values())) if len(given) == 1 else given
    # What is annotated already is no matter of the spec.
    free = rebuild(batch, lambda leaf: None if _is_annotated(leaf) else leaf)
    plan = plan_batch(free, mesh, spec)
    if plan.left:
        warn_user(plan.left)
    split = (leaf for _, leaf in leaves(send(plan)))
    made = {
        id(before): after
        for (_, before), after in zip(leaves(batch), split, strict=True)
        if isinstance(after, torch.Tensor)
    }
    return rebuild(described, lambda leaf: _stand_in(leaf, made))


def _is_annotated(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and get_sharding(leaf) is not None


def _stand_in(leaf: Any, split: dict[int, torch.Tensor]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    meta = split.get(id(leaf), leaf)
    twin = torch_xla_trace.placeholder(meta.shape, meta.dtype)
    return copy_attributes(meta, twin.requires_grad_(leaf.requires_grad))


def _describe(leaf: Any) -> Any:
    """A meta tensor of the leaf's shape, dtype and annotation; or what is no array."""
    if isinstance(leaf, np.ndarray):
        leaf = as_tensor(leaf, f"array {list(leaf.shape)}")
    if isinstance(leaf, torch.Tensor):
        meta = torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
        return copy_attributes(leaf, meta.requires_grad_(leaf.requires_grad))
    described = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    if isinstance(leaf, np.generic) or not described:
        return leaf
    return torch.empty(tuple(leaf.shape), dtype=_torch_dtype(leaf), device="meta")


def _torch_dtype(leaf: Any) -> torch.dtype:
    if isinstance(leaf.dtype, torch.dtype):
        return leaf.dtype
    found = getattr(torch, str(np.dtype(leaf.dtype)), None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"trace: {leaf!r}: torch has no dtype {leaf.dtype}")
    return found
