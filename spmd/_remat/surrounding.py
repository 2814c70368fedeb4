"""What a region was called in, for its second computation.

That runs in the backward pass, when the contexts of the forward are left. It has to
meet the same functions: torch counts what is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

Twins = Mapping[torch.Tensor, torch.Tensor]
Enter = Callable[[Twins], AbstractContextManager[object]]

# Module variables, as where rows are split: a forward runs in one thread.
_around: tuple[Enter, ...] = ()
_all_is_dropped = False


@contextmanager
def surrounding(enter: Enter) -> Iterator[None]:
    """Enter a context, and enter it anew where a region inside is computed.

    Args:
        enter: Makes the context, from the tensors that stand for others by those.

    Yields:
        Nothing.
    """
    global _around
    before = _around
    _around = (*before, enter)
    try:
        with enter({}):
            yield
    finally:
        _around = before


def around() -> tuple[Enter, ...]:
    """What is entered now, outermost first."""
    return _around


@contextmanager
def entered(contexts: tuple[Enter, ...], twins: Twins) -> Iterator[None]:
    """Enter contexts that a region was called in.

    Args:
        contexts: From `around`.
        twins: What stands for tensors in this computation, by those.

    Yields:
        Nothing.
    """
    global _around
    before = _around
    with ExitStack() as stack:
        for enter in contexts:
            stack.enter_context(enter(twins))
        _around = contexts
        try:
            yield
        finally:
            _around = before


@contextmanager
def dropped() -> Iterator[None]:
    """Inside, all values are computed again: a model's own checkpoints do nothing.

    Yields:
        Nothing.
    """
    global _all_is_dropped
    before = _all_is_dropped
    _all_is_dropped = True
    try:
        yield
    finally:
        _all_is_dropped = before


def is_dropped() -> bool:
    """Whether a region around computes all values again."""
    return _all_is_dropped
