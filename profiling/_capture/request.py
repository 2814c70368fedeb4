"""Capture a profile of a program that runs elsewhere: ``spmd profile --port``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

_CONNECT_S = 5.0
_PATIENCE_S = 90.0
_SHOWN = 2000
_ROOT = str(Path(__file__).resolve().parents[2])
_MAX_SECONDS = 600.0


def capture_outside(
    *, port: int, host: str = "localhost", seconds: float = 2.0, to: str | Path
) -> Path:
    """Have a running program record itself for a while.

    The program writes the profile, so `to` is a folder of its machine: one that both
    see if it runs elsewhere.

    Args:
        port: Where it listens: what it gave to `profiling.serve`, or to the
            ``start_server`` of jax or torch_xla.
        host: Its machine; several with commas between, each on the same port.
        seconds: For how long; a few steps' worth is enough.
        to: The run's folder.

    Returns:
        The folder of this capture, as `profiling.capture` makes it.

    Raises:
        ValueError: Arguments that make no sense, a folder that cannot be written to,
            nobody who listens there, or nothing that ran meanwhile.
        RuntimeError: The client failed, in its words.
    """
    from profiling._capture.session_folder import checked, complete

    if not 1 <= port <= 65535:
        raise ValueError(f"port {port}; 1..65535 are ports")
    if not 0 < seconds <= _MAX_SECONDS:
        raise ValueError(
            f"{seconds:g} seconds; more than 0 and at most {_MAX_SECONDS:.0f} are "
            f"possible, and a few steps' worth is enough"
        )
    hosts = [name.strip() for name in host.split(",") if name.strip()]
    if not hosts:
        raise ValueError(f"host {host!r} names no machine")
    folder = checked(to)
    for name in hosts:
        _check_listens(name, port)
    profiles = folder / "plugins" / "profile"
    before = set(profiles.iterdir())
    _collect(hosts, port, folder, seconds)
    made = _written(profiles, before)
    if made is None:
        raise ValueError(
            f"{', '.join(hosts)} recorded, but {folder} holds no profile: the program "
            f"writes it on its own machine, where this folder is another one; give "
            f"one that both see, or copy it from there"
        )
    complete(made)
    return made


def _check_listens(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise ValueError(
            f"nothing answers on {host}:{port} ({error.strerror or error}); start the "
            f"program with profiling.serve({port}) in it, and give --host if it runs "
            f"on another machine"
        ) from error


def _collect(hosts: Iterable[str], port: int, folder: Path, seconds: float) -> None:
    addresses = ",".join(f"{name}:{port}" for name in hosts)
    milliseconds = max(1, round(seconds * 1000))
    try:
        ended = subprocess.run(
            # -P: a profiling.py in the current folder must not stand in for ours.
            [
                *(sys.executable, "-P", "-m", "profiling._capture.child"),
                *(addresses, str(folder), str(milliseconds)),
            ],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds + _PATIENCE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"{addresses} did not finish its profile within {_PATIENCE_S:.0f} s after "
            f"the capture; look at what listens there, or capture fewer seconds"
        ) from error
    lines = ended.stdout.decode(errors="replace").splitlines()
    said = [line for line in lines if line.startswith('{"error":')]
    if ended.returncode or not said:
        log = ended.stderr.decode(errors="replace").strip()[-_SHOWN:]
        raise RuntimeError(f"the profiler's client ended ({ended.returncode}): {log}")
    error = json.loads(said[-1])["error"]
    if error is None:
        return
    if "No trace event was collected" in error:
        raise ValueError(
            f"{addresses} gave no profile: it is no profiler server, or another "
            f"capture was going on there; try again, or look at what listens on port "
            f"{port}"
        )
    raise RuntimeError(f"the capture of {addresses} failed: {error}")


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    # The client needs no device, and must not take the program's.
    return {**os.environ, "PYTHONPATH": path, "PJRT_DEVICE": "CPU"}


def _written(profiles: Path, before: set[Path]) -> Path | None:
    """The new folder, which a shared disk may show only after a moment."""
    deadline = time.monotonic() + 2
    while True:
        new = [
            path
            for path in profiles.iterdir()
            if path not in before and any(path.glob("*.xplane.pb"))
        ]
        if new:
            return max(new, key=os.path.getmtime)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
