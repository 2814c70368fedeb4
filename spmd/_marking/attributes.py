"""Carry what users and we hang on a tensor over to its twin."""

from __future__ import annotations

from typing import TypeVar

import torch

T = TypeVar("T", bound=torch.Tensor)


def copy_attributes(source: torch.Tensor, target: T) -> T:
    """Give a tensor the Python attributes of another, annotations included.

    Args:
        source: Where the attributes are.
        target: Where they go.

    Returns:
        The target.
    """
    for name, value in vars(source).items():
        setattr(target, name, value)
    return target
