"""Start the compiling process, wait for it, and end it when it takes too long."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_TICK_S = 0.5
_POLL_S = 0.05
_ROOT = Path(__file__).resolve().parents[2]

# Not passed on: they would change what is compiled, or where.
_DROPPED = (
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    "JAX_NUM_CPU_DEVICES",
    "JAX_COMPILATION_CACHE_DIR",
    "PJRT_DEVICE",
)
_SET = {
    "JAX_PLATFORMS": "cpu",  # jax itself must look for no device
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is opened, so several may load it
    "TF_CPP_MIN_LOG_LEVEL": "1",  # its warnings become findings, shown or not
    # libtpu writes warnings to a file in the temp folder unless told otherwise.
    "TPU_STDERR_LOG_LEVEL": "1",
    "TPU_MIN_LOG_LEVEL": "1",
    "TPU_LOG_DIR": "disabled",
    # So that libtpu does not ask the cloud's metadata server what machine this is.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}


def run(
    folder: Path, timeout_s: float, tick: Callable[[float], None]
) -> tuple[int | None, str]:
    """Compile what a folder holds.

    Args:
        folder: The job, see `profiling._compiling.child`.
        timeout_s: Seconds after which the process is killed.
        tick: Called with the seconds so far.

    Returns:
        The process's exit status, None where it was killed for its time, and all that
        it wrote to stdout and stderr.
    """
    log = folder / "log"
    with open(log, "wb") as file:
        process = start(folder, file.fileno())
        try:
            code = _wait(process, timeout_s, tick)
        finally:
            end(process)
    return code, log.read_text(encoding="utf-8", errors="replace")


def start(folder: Path, output: int) -> subprocess.Popen[bytes]:
    """Start the process.

    Args:
        folder: The job.
        output: File descriptor for its stdout and stderr.

    Returns:
        The process, in a process group of its own.
    """
    # -P: a profiling.py or jax.py in the current folder must not stand in for ours.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "profiling._compiling.child", str(folder)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def environment() -> dict[str, str]:
    """Variables for the process: ours without what would change the compile.

    Returns:
        By name.
    """
    kept = {k: v for k, v in os.environ.items() if k not in _DROPPED}
    path = os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH"))))
    return {**kept, **_SET, "PYTHONPATH": path}


def _wait(
    process: subprocess.Popen[bytes], timeout_s: float, tick: Callable[[float], None]
) -> int | None:
    began = time.monotonic()
    told = 0.0
    while process.poll() is None:
        elapsed = time.monotonic() - began
        if elapsed >= timeout_s:
            return None
        if elapsed >= told:
            tick(elapsed)
            told = elapsed + _TICK_S
        time.sleep(_POLL_S)
    return process.returncode


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, if it is still there.

    Args:
        process: From `start`.
    """
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
