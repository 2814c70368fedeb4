"""Where step records go: a line for people, lines of JSON, TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TextIO

from profiling._metrics.background import Background
from profiling._metrics.console import Console
from profiling._metrics.devices import Devices
from profiling._metrics.step_record import StepRecord
from profiling._metrics.tensorboard import TensorBoard

_encode = json.JSONEncoder(allow_nan=False).encode  # json.dumps makes one each time


class Sink(Protocol):
    """Takes the records of a window."""

    def write(self, records: Sequence[StepRecord]) -> None:
        """Write them.

        Args:
            records: At least one, in order.
        """
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


class JsonLines:
    """An object for each step, on a line of its own, added to what the file has.

    Args:
        path: The file; its folder is made.
        process: Index of this process.
        num_processes: With several, each writes a file of its own, such as
            ``metrics.p0.jsonl``.
    """

    def __init__(self, path: Path, process: int, num_processes: int) -> None:
        if num_processes > 1:
            path = path.with_name(f"{path.stem}.p{process}{path.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self._process = process

    def write(self, records: Sequence[StepRecord]) -> None:
        """Write them, and have the system know them.

        Args:
            records: Of a window.
        """
        now = {"time": time.time(), "process": self._process}
        text, shared, known = "", "", None
        for record in records:
            window = record.of_window()
            if window != known:  # else in words once for all
                known, shared = window, _encode(window | now)[1:]
            text += f"{_encode(record.of_step())[:-1]}, {shared}\n"
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def opened(
    devices: Devices,
    *,
    console: bool | TextIO,
    about: str,
    json_lines: str | Path | None,
    tensorboard: str | Path | None,
) -> list[Sink]:
    """Open what a user asked for, as far as it is this process's.

    Args:
        devices: Say which process this is.
        console: To print to.
        about: See `Console`.
        json_lines: File.
        tensorboard: Folder.

    Returns:
        Of several processes only the first has more than the file of JSON lines. Files
        are written in the background.
    """
    found: list[Sink] = []
    files: list[Sink] = []
    if console is not False and devices.process == 0:
        found.append(Console(None if console is True else console, about))
    if json_lines is not None:
        path = Path(json_lines)
        files.append(JsonLines(path, devices.process, devices.num_processes))
    if tensorboard is not None and devices.process == 0:
        files.append(TensorBoard(Path(tensorboard)))
    return [*found, Background(*files)] if files else found
