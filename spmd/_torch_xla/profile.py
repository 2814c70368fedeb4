"""The part of the seam to torch_xla that captures profiles.

Like `seam`, written against torch_xla 2.9; nothing else may touch its internals.
Its own `torch_xla.debug.profiler` names the files itself and starts no second session
after one that failed, so this goes one level below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as metrics

from spmd._meshes.mesh import Mesh
from spmd._torch_xla import graph as torch_xla_graph
from spmd._torch_xla import seam

_XLAC: Any = torch_xla._XLAC  # pyright: ignore[reportPrivateImportUsage] # the seam

is_up = seam.runtime_is_up


def start_runtime() -> None:
    """Bring the devices up: what is not there cannot be recorded."""
    seam.device()


def is_recording() -> bool:
    """Whether someone captures what torch_xla does in this process."""
    return bool(_XLAC.profiler.TraceMe.is_enabled(1))


@final
class Session:
    """Records from its making until it is stopped; there can be one at a time."""

    def __init__(self) -> None:
        self._executions = _num_executions()
        self._session = _XLAC.profiler.TslProfilerSessionWrapper()

    def worked(self) -> bool | None:
        """Whether devices were sent work since; None where that is not known."""
        xm.wait_device_ops()  # a graph is counted once it has left the queue
        return _num_executions() != self._executions

    def stop(self) -> bytes:
        """End it.

        Returns:
            A serialised ``XSpace``.

        Raises:
            RuntimeError: Another session was going on when this one was made.
        """
        return self._session.stop()


def wait(*, dropped: bool = True) -> None:
    """Wait until the devices have done what they were sent.

    Args:
        dropped: Also on devices other than the first; runs something small itself.
    """
    if is_up():  # not `seam.wait`: the run itself does not wait here
        xm.wait_device_ops()
        several = seam.spmd_is_on() and seam.num_processes() == 1
        if dropped and several and _num_executions():
            _wait_for_all()


def _num_executions() -> int:
    """Graphs sent to all devices so far."""
    found = metrics.metric_data("ExecuteReplicatedTime")
    return int(found[0]) if found else 0


def _wait_for_all() -> None:
    """Wait for every device: `wait_device_ops` is content with the first.

    The others may be behind by all that follows the last collective. Each takes its
    work in order, so what is sent now comes after it.
    """
    mesh = Mesh({"device": seam.num_devices()})
    pieces = [torch.zeros(1)] * mesh.size
    value = seam.from_local_shards(pieces, mesh, ("device",), shape=[mesh.size])
    value = value + 1
    torch_xla_graph.execute([value])
    xm.wait_device_ops()  # until then its pieces are not known
    _XLAC._get_local_shards([value])


def team() -> tuple[int, int]:
    """This process, and how many there are."""
    if not is_up():
        return 0, 1
    return seam.process_index(), seam.num_processes()


def serve(port: int) -> Any:
    """Let others capture this process.

    Args:
        port: A free one.

    Returns:
        To be held on to: the server ends with it.
    """
    return _XLAC.profiler.start_server(port)


def collect(
    addresses: str, folder: str, *, milliseconds: int, options: Mapping[str, int]
) -> None:
    """Have servers capture themselves, of whichever library they are.

    Args:
        addresses: ``host:port``, with commas between several.
        folder: Where each server writes to.
        milliseconds: For how long.
        options: Levels of the tracers by name.

    Raises:
        RuntimeError: Nobody answered, or nothing was recorded.
    """
    _XLAC.profiler.trace(
        addresses,
        folder,
        duration_ms=milliseconds,
        num_tracing_attempts=1,
        timeout_s=60,
        interval_s=1,
        options=dict(options),
    )
