"""TensorBoard on a run's folder, and what its profile plugin answers."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

STARTS_WITHIN_S = 90.0


class Board:
    """A running TensorBoard.

    Attributes:
        url: Of its profile plugin.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://localhost:{port}/data/plugin/profile"

    def get(self, path: str, **query: str) -> bytes:
        """What it answers to a request."""
        url = f"{self.url}/{path}?{urlencode(query)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            data: bytes = answer.read()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data

    def json(self, path: str, **query: str) -> Any:
        """The same, read."""
        return json.loads(self.get(path, **query))


@contextmanager
def tensorboard(folder: Path) -> Iterator[Board]:
    """Run TensorBoard on a folder until the block ends."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tensorboard.main"),
            *("--logdir", str(folder), "--host", "localhost", "--port", str(port)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        board = Board(port)
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                board.get("runs")
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, "tensorboard ended"
                assert time.monotonic() < deadline, "tensorboard does not answer"
                time.sleep(0.2)
        yield board
    finally:
        process.terminate()
        process.wait(timeout=30)
