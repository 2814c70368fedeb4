"""`Steps`: what takes longer than a second is said on stderr while it lasts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

_SHOWN_AFTER_S = 1.0
_REPEATED_AFTER_S = 30.0


class Steps:
    """Shows which steps are under way; a context manager.

    On a terminal each has a line with its seconds, which goes when it is done. In a
    file, a line comes after a second and then every half minute.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._said: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Steps:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def tick(self, what: str, elapsed_s: float) -> None:
        """Say that a step is under way; may come from any thread.

        Args:
            what: The step.
            elapsed_s: Seconds so far.
        """
        if elapsed_s < _SHOWN_AFTER_S:
            return
        with self._lock:
            if self._console.is_terminal:
                if what not in self._tasks:
                    self._tasks[what] = self._progress.add_task(what, total=None)
            elif elapsed_s >= self._said.get(what, 0.0):
                self._said[what] = elapsed_s + _REPEATED_AFTER_S
                self._console.print(f"{what}: {elapsed_s:.0f} s so far", markup=False)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Say that a step is under way while the block runs.

        Args:
            what: The step.

        Yields:
            Nothing.
        """
        done = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(what, self.tick, done), daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            self._end(what)

    def _end(self, what: str) -> None:
        with self._lock:
            task = self._tasks.pop(what, None)
            if task is not None:
                self._progress.remove_task(task)


def _watch(
    what: str, tick: Callable[[str, float], None], done: threading.Event
) -> None:
    began = time.monotonic()
    while not done.wait(_SHOWN_AFTER_S):
        tick(what, time.monotonic() - began)
