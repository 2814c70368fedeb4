"""Where gradients of weights that are used now are added up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fsdpv2._unreduced import Unreduced
from fsdpv2._unreduced_loop import InLoop
from spmd._remat.surrounding import surrounding

Keeper = Unreduced | InLoop

# A module variable, as where rows are split: a forward runs in one thread.
_active: Keeper | None = None


@contextmanager
def unreduced(into: Keeper | None) -> Iterator[None]:
    """Keep gradients of weights that are used inside in parts.

    Args:
        into: Where to.

    Yields:
        Nothing.
    """
    with surrounding(lambda _: _made_active(into)):
        yield


@contextmanager
def _made_active(into: Keeper | None) -> Iterator[None]:
    global _active
    before = _active
    _active = into
    try:
        yield
    finally:
        _active = before


def active() -> Keeper | None:
    """Where the gradients of weights that are used now are added up.

    Returns:
        None where each is reduced as it comes.
    """
    return _active if torch.is_grad_enabled() else None
