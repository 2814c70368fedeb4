"""Build very many objects without the garbage collector looking at each of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_gc() -> Iterator[None]:
    """Switch the garbage collector off, and on again if it was on.

    Reading a module makes hundreds of thousands of objects and no cycles; collecting
    meanwhile takes longer than the reading.

    Yields:
        Nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
