"""Whether a library of this process has read its flags already.

The seam of this package: what it looks at in torch_xla 2.9 and jax 0.10 is internal.
Nothing is imported; a library that nobody has imported has read nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flags._flag import Channel

_MAPS = Path("/proc/self/maps")


def started(channel: Channel) -> tuple[str, ...]:
    """Libraries that have read a variable, or may have.

    Args:
        channel: ``XLA_FLAGS`` or ``LIBTPU_INIT_ARGS``.

    Returns:
        In words, such as ``jax has devices``; empty if none has.
    """
    if channel == "LIBTPU_INIT_ARGS":
        return ("libtpu is loaded",) if _mapped("libtpu.so") else ()
    found = []
    extension = sys.modules.get("_XLAC")
    running = getattr(extension, "_xla_runtime_is_initialized", None)
    if running is not None and running():
        found.append("torch_xla has devices")
    bridge = sys.modules.get("jax._src.xla_bridge")
    up = getattr(bridge, "backends_are_initialized", None)
    if up is not None and up():
        found.append("jax has devices")
    return tuple(found)


def _mapped(name: str) -> bool:
    """Whether a shared object is loaded."""
    try:
        return name in _MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
