"""Where step records go: a line for people, lines of JSON, TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TextIO

from profiling._metrics.console import Console
from profiling._metrics.devices import Devices
from profiling._metrics.step_record import StepRecord
from profiling._metrics.tensorboard import TensorBoard


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
        lines = [json.dumps(r.as_json() | now, allow_nan=False) for r in records]
        self._file.write("".join(f"{line}\n" for line in lines))
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
        At most three; of several processes only the first has more than the file.
    """
    found: list[Sink] = []
    if console is not False and devices.process == 0:
        found.append(Console(None if console is True else console, about))
    if json_lines is not None:
        path = Path(json_lines)
        found.append(JsonLines(path, devices.process, devices.num_processes))
    if tensorboard is not None and devices.process == 0:
        found.append(TensorBoard(Path(tensorboard)))
    return found
