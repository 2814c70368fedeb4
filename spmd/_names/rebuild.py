"""Take nested containers apart, and put them together again with other leaves."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Step = tuple[Any, str]
"""One step into a container: its key, and how that is written in a path."""


def children(tree: Any) -> list[tuple[Step, Any]] | None:
    """What a container holds.

    Args:
        tree: Any object.

    Returns:
        Key, its text and value for each entry of a mapping, list, tuple, namedtuple or
        dataclass; `None` for anything else, which is a leaf.

    Example:
        >>> children({"labels": 1})
        [(('labels', "['labels']"), 1)]
        >>> children("text") is None
        True
    """
    if isinstance(tree, Mapping):
        return [((key, f"[{key!r}]"), value) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        names = getattr(tree, "_fields", None)
        keys = [(n, f".{n}") for n in names] if names else _indices(len(tree))
        return list(zip(keys, tree, strict=True))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        return [((n, f".{n}"), getattr(tree, n)) for n in names if hasattr(tree, n)]
    return None


def _indices(count: int) -> list[Step]:
    return [(i, f"[{i}]") for i in range(count)]


def leaves(tree: Any, path: str = "batch") -> Iterator[tuple[str, Any]]:
    """Leaves of nested containers, each with its path.

    Args:
        tree: Any object.
        path: What to call the outermost container.

    Yields:
        Path and leaf, in the order in which `rebuild` visits them.

    Example:
        >>> list(leaves({"a": [1, (2,)]}))
        [("batch['a'][0]", 1), ("batch['a'][1][0]", 2)]
    """
    inside = children(tree)
    if inside is None:
        yield path, tree
        return
    for (_, label), value in inside:
        yield from leaves(value, path + label)


def rebuild(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """Copy nested containers with each leaf replaced.

    Args:
        tree: Any object; left as it is.
        replace: Gives the new leaf for an old one; called in the order of `leaves`.

    Returns:
        Containers of the same types. What a container carries besides its entries (the
        encodings of a Hugging Face BatchEncoding, say) is kept.

    Raises:
        TypeError: A mapping that can be neither copied and filled nor made from a dict.

    Example:
        >>> rebuild({"a": [1, (2,)]}, lambda leaf: leaf * 10)
        {'a': [10, (20,)]}
    """
    inside = children(tree)
    if inside is None:
        return replace(tree)
    new = [(key, rebuild(value, replace)) for (key, _), value in inside]
    if isinstance(tree, Mapping):
        return _mapping(tree, dict(new))
    values = [value for _, value in new]
    if hasattr(tree, "_fields"):
        return type(tree)(*values)
    if isinstance(tree, list | tuple):
        return type(tree)(values)
    made = copy.copy(tree)
    for name, value in new:
        object.__setattr__(made, name, value)  # a frozen dataclass too
    return made


def _mapping(tree: Mapping[Any, Any], new: dict[Any, Any]) -> Any:
    if type(tree) is dict:
        return new
    if hasattr(tree, "__setitem__"):
        made: Any = copy.copy(tree)
        for key, value in new.items():
            made[key] = value
        return made
    maker: Any = type(tree)
    try:
        return maker(new)
    except TypeError as error:
        raise TypeError(
            f"a batch holds a {type(tree).__name__}, which can neither be filled nor "
            f"made from a dict; pass dict(batch)"
        ) from error
