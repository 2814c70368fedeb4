"""`Background`: have another thread write, so that the next step starts at once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, final

from profiling._metrics.step_record import StepRecord


@final
class Background:
    """Writes records to sinks, in order, in a thread of its own.

    At the end of a window the devices have nothing to do until the loop goes on. What
    was handed in is written even if nobody calls `close`, unless the process is killed.

    Args:
        *sinks: Where to write.
    """

    def __init__(self, *sinks: Any) -> None:
        self._sinks = sinks
        self._errors: list[Exception] = []
        queue: SimpleQueue[Sequence[StepRecord] | None] = SimpleQueue()
        thread = threading.Thread(
            target=_write, args=(queue, sinks, self._errors), daemon=True
        )
        thread.start()
        self._queue = queue
        self._end = weakref.finalize(self, _end, queue, thread)

    def write(self, records: Sequence[StepRecord]) -> None:
        """Have them written.

        Args:
            records: Of a window.

        Raises:
            Exception: What went wrong with those before.
        """
        self._check()
        self._queue.put(records)

    def close(self) -> None:
        """Wait until all is written, and close the sinks.

        Raises:
            Exception: What went wrong.
        """
        self._end()
        for sink in self._sinks:
            sink.close()
        self._check()

    def _check(self) -> None:
        if self._errors:
            raise self._errors.pop(0)


def _write(
    queue: SimpleQueue[Sequence[StepRecord] | None],
    sinks: Sequence[Any],
    errors: list[Exception],
) -> None:
    while (records := queue.get()) is not None:
        for sink in sinks:
            try:
                sink.write(records)
            except Exception as error:  # the loop hears of it at its next window
                errors.append(error)


def _end(queue: SimpleQueue[Any], thread: threading.Thread) -> None:
    queue.put(None)
    if thread is not threading.current_thread():
        thread.join()
