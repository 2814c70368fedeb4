"""Saves that go on in the background, and where their errors come out."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal, final

from spmd._host_spans import CHECKPOINT, span
from spmd.checkpoint._error import CheckpointError

WhenBusy = Literal["wait", "refuse"]


@final
class Saving:
    """A save, in the background or done.

    Args:
        path: Where to.

    Attributes:
        path: Where to.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended.

        Args:
            timeout_s: For how long; None for as long as it takes.

        Returns:
            Whether it has ended.

        Raises:
            CheckpointError: It failed. An error is raised once.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        error, self._error = self._error, None
        if error is not None:
            raise CheckpointError(
                f"the asynchronous save to {self.path} failed: {error}"
            ) from error
        return True

    def start(self, work: Callable[[], object]) -> None:
        """Begin, in a thread that the end of the process waits for.

        Args:
            work: Called there.
        """

        def run() -> None:
            try:
                with span(CHECKPOINT):
                    work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="spmd-checkpoint")
        self._thread.start()

    def __repr__(self) -> str:
        state = "done" if self.done else "being written"
        return f"Saving({self.path!r}, {state})"


_last: Saving | None = None


def begin(path: str, work: Callable[[], object]) -> Saving:
    """Start a save in the background.

    Args:
        path: Where to.
        work: What to do.

    Returns:
        The save.
    """
    global _last
    if not _watching:
        _watching.append(True)
        atexit.register(_at_exit)
    _last = Saving(path)
    _last.start(work)
    return _last


def settle(when_busy: WhenBusy = "wait") -> None:
    """Have the last save in the background behind us, before the next one.

    Args:
        when_busy: Wait for it, or refuse.

    Raises:
        CheckpointError: It failed, or it has not ended and `when_busy` is ``"refuse"``.
        ValueError: Another `when_busy`.
    """
    if when_busy not in ("wait", "refuse"):
        raise ValueError(f"save: when_busy={when_busy!r}; 'wait' or 'refuse' is needed")
    if _last is None:
        return
    if when_busy == "refuse" and not _last.done:
        raise CheckpointError(
            f"save: the asynchronous save to {_last.path} has not ended; wait for it "
            f"(when_busy='wait'), or save less often"
        )
    _last.wait()


def wait() -> None:
    """Wait until no save goes on in the background.

    Raises:
        CheckpointError: It failed.
    """
    settle()


_watching: list[bool] = []


def _at_exit() -> None:
    """Tell of an error that nobody was told of, and have the exit status say so."""
    try:
        wait()
    except CheckpointError as error:
        print(f"spmd.checkpoint: {error}", file=sys.stderr)
        # Python has no other way to set the status from here: it is 120 if the last
        # flush of stdout fails.
        sys.stdout = _Failing(sys.stdout)


class _Failing:
    """A stream whose last flush fails, after what it was given is written.

    Args:
        stream: Where to.
    """

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def flush(self) -> None:
        """Flush, and fail.

        Raises:
            CheckpointError: Always.
        """
        self._stream.flush()
        raise CheckpointError("the last checkpoint was not saved, see above")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
