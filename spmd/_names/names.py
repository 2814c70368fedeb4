"""Names for the tensors in the arguments of a step."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from spmd._names.tree import named_leaves


def call_leaves(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], tuple[Any, ...]]:
    """Tensors in the arguments of a call by name, and the other leaves.

    Args:
        fn: The function that is called; its parameter names begin the names.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Returns:
        Tensors by name, such as ``batch.input_ids``; and for every other leaf its name
        and what identifies its value.
    """
    tensors: dict[str, torch.Tensor] = {}
    other = []
    for argument, value in by_parameter(fn, args, kwargs).items():
        if isinstance(value, torch.Tensor):
            tensors[argument] = value
            continue
        for path, leaf in named_leaves(value):
            name = argument + dotted(path)
            if isinstance(leaf, torch.Tensor):
                tensors[name] = leaf
            else:
                other.append((name, *_identity(leaf)))
    return tensors, tuple(other)


@functools.lru_cache(maxsize=4096)  # each call of a step has the paths of the last
def dotted(path: str) -> str:
    """Write a path of `named_leaves` with dots.

    Args:
        path: Such as ``['a'][0].b``.

    Returns:
        Such as ``.a.0.b``.

    Example:
        >>> dotted("['a'][0].b")
        '.a.0.b'
    """
    return path.replace("['", ".").replace("']", "").replace("[", ".").replace("]", "")


def by_parameter(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments of a call by the names of the parameters.

    Args:
        fn: The function that is called.
        args: Positional arguments; of those without a name, ``args.0`` and so on.
        kwargs: Keyword arguments.

    Returns:
        Arguments by name.
    """
    names = list(_positional(fn))
    names += [f"args.{i}" for i in range(len(names), len(args))]
    return {**dict(zip(names, args, strict=False)), **kwargs}


_known: weakref.WeakKeyDictionary[Callable[..., Any], tuple[str, ...]]
_known = weakref.WeakKeyDictionary()


def _positional(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters that can be given by position, looked up once."""
    try:
        found = _known.get(fn)
        if found is None:
            found = _known[fn] = _look_up(fn)
        return found
    except TypeError:  # not hashable, or no weak reference to it
        return _look_up(fn)


def _look_up(fn: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in kinds)


def _identity(value: Any) -> tuple[Any, ...]:
    """Equal for equal values of one type; the key keeps what it is about alive."""
    try:
        hash(value)
    except TypeError:
        value = id(value)
    # 1, 1.0 and True are equal, and make different programs.
    return (value, type(value)) if isinstance(value, bool | float) else (value,)
