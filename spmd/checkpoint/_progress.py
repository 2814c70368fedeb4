"""A progress bar on stderr, for what takes more than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AFTER_S = 1.0


@contextmanager
def progress(
    title: str, total_bytes: int, show: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Show how many bytes are done.

    Args:
        title: What is going on.
        total_bytes: How many there are.
        show: Always, never, or (None) on a terminal, once it has taken a second.

    Yields:
        To be called with the number of bytes after each part.
    """
    if show is False or (show is None and not sys.stderr.isatty()):
        yield lambda num_bytes: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(
        "{task.description}",
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=show is None,
    )
    task = bar.add_task(title, total=total_bytes)
    started, shown = time.monotonic(), False

    def advance(num_bytes: int) -> None:
        nonlocal shown
        bar.update(task, advance=num_bytes)
        if not shown and (show or time.monotonic() - started > AFTER_S):
            shown = True
            bar.start()

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
