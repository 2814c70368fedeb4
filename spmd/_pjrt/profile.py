"""The part of the seam to jax that captures profiles.

Like `client`, written against jax 0.10; nothing else may touch its internals.
`jax.profiler` names the files itself, so this goes one level below.
"""

from __future__ import annotations

from typing import Any, final

import jax
from jax._src import xla_bridge
from jaxlib import (
    _profiler,  # pyright: ignore[reportAttributeAccessIssue] - compiled, no stubs
)

from spmd._pjrt import client as client  # has the recorder hear of our spans


def is_up() -> bool:
    """Whether jax's devices were used."""
    return bool(xla_bridge.backends_are_initialized())


def start_runtime() -> None:
    """Bring the devices up: a plug-in records from then on only."""
    jax.devices()


def is_recording() -> bool:
    """Whether someone captures what jax does in this process."""
    return bool(_profiler.TraceMe.is_enabled())


@final
class Session:
    """Records from its making until it is stopped; there can be one at a time."""

    def __init__(self) -> None:
        options = _profiler.ProfileOptions()
        options.python_tracer_level = 0  # every Python call: slows the host down
        self._session = _profiler.ProfilerSession(options)

    def worked(self) -> bool | None:
        """Whether devices were sent work since; None where that is not known."""
        return None

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
        dropped: Also where nobody kept the results; runs something small itself.
    """
    if not is_up():
        return
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except RuntimeError:
            continue  # donated meanwhile, or it failed: whoever reads it is told
    if not dropped:
        return
    # Of what gave only results that nobody kept no array is alive. A device takes its
    # work in order, so what is sent now comes after it.
    last = [_after_all(jax.device_put(0, device)) for device in jax.local_devices()]
    jax.block_until_ready(last)


@jax.jit
def _after_all(x: jax.Array) -> jax.Array:
    return x + 1


def team() -> tuple[int, int]:
    """This process, and how many there are."""
    return (jax.process_index(), jax.process_count()) if is_up() else (0, 1)


def serve(port: int) -> Any:
    """Let others capture this process.

    Args:
        port: A free one.

    Returns:
        To be held on to: the server ends with it.
    """
    return _profiler.start_server(port)
