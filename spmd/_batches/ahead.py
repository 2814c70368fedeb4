"""Run an iterator some items ahead in a background thread, and never hang over it."""

from __future__ import annotations

import atexit
import functools
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
Fetched: TypeAlias = list[T] | BaseException
"""One item in a list, an empty list at the end, or what went wrong.

A list can be emptied, so that nobody on the way keeps a batch on the devices.
"""

PATIENCE_S = 1.0
"""How long leaving a loop waits for the thread, which first ends what it is doing."""

EXIT_PATIENCE_S = 5.0
"""The same at interpreter exit; a thread in a device transfer must not be cut off."""


class Ahead(Generic[T]):
    """An iterator that a thread runs ahead.

    Args:
        source: The iterator; only the thread touches it from now on.
        num_items: How many items it may be ahead. 0 runs it in the caller, without a
            thread.
    """

    def __init__(self, source: Iterator[T], num_items: int) -> None:
        self._source = source if num_items == 0 else None
        self._items: queue.SimpleQueue[Fetched[T]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._room = threading.Semaphore(num_items)
        self._ended = False
        self.thread: threading.Thread | None = None
        if num_items == 0:
            return
        # The thread knows nothing of `self`, so that it keeps nothing alive.
        self.thread = threading.Thread(
            target=_work,
            args=(source, self._items, self._room, self._stop),
            name="spmd.ShardedLoader",
            daemon=True,
        )
        # torch_xla takes its client down in a handler of its own, which was registered
        # before this one and so runs after it.
        self._at_exit = functools.partial(
            _finish, self.thread, self._stop, self._room, EXIT_PATIENCE_S
        )
        atexit.register(self._at_exit)
        self.thread.start()

    def get(self) -> list[T]:
        """Wait for the next item.

        Returns:
            The item in a list; an empty list after the last one.

        Raises:
            BaseException: What the iterator raised, with its own traceback.
        """
        if self._source is not None:
            return list(itertools.islice(self._source, 1))
        if self._ended:
            return []
        fetched = self._items.get()
        self._room.release()
        self._ended = not isinstance(fetched, list) or not fetched
        if isinstance(fetched, BaseException):
            raise fetched
        return fetched

    def close(self) -> None:
        """Stop the thread; it ends once it is done with the item it is working on."""
        self._source = None
        if self.thread is None:
            return
        atexit.unregister(self._at_exit)
        _finish(self.thread, self._stop, self._room, PATIENCE_S)
        while not self._items.empty():  # let go of batches that nobody will fetch
            self._items.get_nowait()


def _work(
    source: Iterator[T],
    items: queue.SimpleQueue[Fetched[T]],
    room: threading.Semaphore,
    stop: threading.Event,
) -> None:
    try:
        fetched = True
        while fetched:
            room.acquire()
            if stop.is_set():
                return
            fetched = list(itertools.islice(source, 1))
            items.put(fetched)
            fetched = bool(fetched)
    except BaseException as error:
        items.put(error)
    finally:
        del source  # a DataLoader's workers end here


def _finish(
    thread: threading.Thread,
    stop: threading.Event,
    room: threading.Semaphore,
    patience_s: float,
) -> None:
    stop.set()
    room.release()  # it may be waiting for room
    # The garbage collector may run this in the very thread.
    if thread is not threading.current_thread():
        thread.join(patience_s)
