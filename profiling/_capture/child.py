"""The process that asks profiler servers for a capture.

One of its own since the client writes to stdout, which may be a reader's JSON, logs
past Python, and is a native library that may end its process. The last line of stdout
is how it went: ``{"error": null}`` or the client's words.
"""

from __future__ import annotations

import json
import sys

_LEVELS = {"host_tracer_level": 2, "device_tracer_level": 1, "python_tracer_level": 0}


def main(addresses: str, folder: str, milliseconds: str) -> None:
    """Capture once.

    Args:
        addresses: ``host:port``, with commas between several.
        folder: Where each server writes to.
        milliseconds: For how long.
    """
    error = None
    try:
        _trace(addresses, folder, int(milliseconds))
    except RuntimeError as failure:
        error = str(failure)
    print("\n" + json.dumps({"error": error}), flush=True)


def _trace(addresses: str, folder: str, milliseconds: int) -> None:
    try:
        from xprof.convert import _pywrap_profiler_plugin as client
    except ImportError:  # the same client, behind a longer import
        from spmd._torch_xla import profile as torch_xla_profile

        torch_xla_profile.collect(
            addresses, folder, milliseconds=milliseconds, options=_LEVELS
        )
    else:
        client.trace(addresses, folder, "", True, milliseconds, 1, _LEVELS)


if __name__ == "__main__":
    main(*sys.argv[1:])
