"""Values that a tensor on meta will have once something asks for its pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

Source = Callable[[tuple[slice, ...]], Any]
"""Gives the piece at an index: one slice per dim, with start and stop."""

_sources: Any = WeakTensorKeyDictionary()


def promise(tensor: torch.Tensor, source: Source) -> None:
    """Say where the values of a tensor will come from.

    Args:
        tensor: On meta.
        source: Gives its pieces.
    """
    _sources[tensor] = source


def promised(tensor: torch.Tensor) -> Source | None:
    """Where the values of a tensor will come from.

    Args:
        tensor: Any tensor.

    Returns:
        None where nothing was promised, or the tensor has values by now.
    """
    return _sources.get(tensor) if tensor.device.type == "meta" else None


def kept(tensor: torch.Tensor) -> None:
    """Forget a promise: its values are there.

    Args:
        tensor: Any tensor.
    """
    if tensor in _sources:
        del _sources[tensor]
