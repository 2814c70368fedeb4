"""Warnings that point at the user's line, however deep inside they arise."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import FrameType

_INSIDE = ("spmd", "fsdpv2", "profiling", "torch", "contextlib")


def warn_user(text: str) -> None:
    """Warn with the first caller outside these packages and torch as the place.

    Args:
        text: The message.
    """
    depth = sum(1 for _ in _frames_inside(sys._getframe()))
    warnings.warn(text, stacklevel=depth + 1)


def _frames_inside(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _INSIDE:
            return
        yield frame
        frame = frame.f_back
