"""`serve`: let a profile of this process be captured from outside."""

from __future__ import annotations

import errno
import socket
from types import TracebackType
from typing import Any, Literal, final

from profiling._capture.recorders import recorders

_serving: ProfileServer | None = None


def serve(
    port: int, *, runtime: Literal["torch_xla", "jax"] | None = None
) -> ProfileServer:
    """Listen for ``spmd profile --port``, TensorBoard's capture button and the like.

    Costs nothing until someone captures. Anybody who reaches the port can capture, and
    have the profile written to a folder of this machine: open it to nobody else.

    Args:
        port: A free one, on all of the machine's addresses.
        runtime: Whose devices are recorded. Default: jax after
            ``spmd.init(runtime="jax")`` or where torch_xla is not imported, else
            torch_xla.

    Returns:
        The server; ``close()`` it, leave its context, or let the process end.

    Raises:
        TypeError: A port that is no int.
        ValueError: A port outside 1..65535, or one that something else listens on; a
            runtime that is unknown or not imported.
        RuntimeError: This process serves already, or has imported neither jax nor
            torch_xla.

    Example::

        server = profiling.serve(9012)
        # elsewhere: spmd profile --port 9012 --seconds 2 --to runs/a
    """
    global _serving
    if not isinstance(port, int) or isinstance(port, bool):
        raise TypeError(f"serve: port={port!r}; an int is needed")
    if not 1 <= port <= 65535:
        raise ValueError(f"serve: port {port}; 1..65535 are ports")
    if _serving is not None:
        raise RuntimeError(
            f"serve: this process serves on port {_serving.port} already; close() that "
            f"server first"
        )
    known = recorders()
    chosen = [r for r in known if runtime in (None, r.name)]
    if not chosen:
        raise ValueError(
            f"serve: runtime={runtime!r}; this process has imported "
            f"{' and '.join(r.name for r in known)}"
        )
    _check_free(port)
    recorder = chosen[0]
    recorder.seam.start_runtime()
    _serving = ProfileServer(port, recorder.name, recorder.seam.serve(port))
    return _serving


def _check_free(port: int) -> None:
    """Refuse a port that is taken: the servers would share it without a word."""
    with socket.socket(socket.AF_INET) as probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            why = "something else listens on it"
            if error.errno != errno.EADDRINUSE:
                why = f"it cannot be opened ({error.strerror})"
            raise ValueError(f"serve: port {port}: {why}; give another one") from error


@final
class ProfileServer:
    """A server, made by `serve`.

    Attributes:
        port: Where it listens.
        runtime: Whose devices it records: ``jax`` or ``torch_xla``.
    """

    def __init__(self, port: int, runtime: str, server: Any) -> None:
        self.port = port
        self.runtime = runtime
        self._server = server

    def close(self) -> None:
        """End it; again does nothing."""
        global _serving
        self._server = None  # it ends with the object
        if _serving is self:
            _serving = None

    def __enter__(self) -> ProfileServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._server is None else self.runtime
        return f"ProfileServer(port={self.port}, {state})"
