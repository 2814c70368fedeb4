"""Walk the containers that models take and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def named_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested containers with the path that reaches each.

    Mappings (Hugging Face's ModelOutput and BatchEncoding included), lists, tuples and
    dataclasses are containers; everything else is a leaf.

    Args:
        tree: Any object.
        path: Prefix for the paths.

    Yields:
        Path such as ``['input_ids']`` or ``[0].logits``, and the leaf.
    """
    if isinstance(tree, torch.Tensor):  # first, since most leaves are
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from named_leaves(value, f"{path}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for i, value in enumerate(tree):
            yield from named_leaves(value, f"{path}[{i}]")
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from named_leaves(getattr(tree, field.name), f"{path}.{field.name}")
    else:
        yield path, tree


def map_tensors(visit: Callable[[torch.Tensor], Any], tree: Any) -> None:
    """Call a function on every tensor in nested containers.

    Args:
        visit: Called with each tensor, for its effect.
        tree: Any object; containers are left as they are.
    """
    for _, leaf in named_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            visit(leaf)
