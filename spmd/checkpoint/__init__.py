"""Checkpoints: sharded, read back onto any mesh, safe under a kill.

Names that need torch load it on first use, so that listing and verifying do not pay
for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spmd.checkpoint._background import Saving, wait
    from spmd.checkpoint._convert import convert
    from spmd.checkpoint._error import CheckpointError
    from spmd.checkpoint._hf_export import export_hf
    from spmd.checkpoint._hf_load import from_hf
    from spmd.checkpoint._load import Loaded, load
    from spmd.checkpoint._manager import Manager
    from spmd.checkpoint._save import save
    from spmd.checkpoint._verify import verify

_HOME = {
    "CheckpointError": "_error",
    "Loaded": "_load",
    "Manager": "_manager",
    "Saving": "_background",
    "convert": "_convert",
    "export_hf": "_hf_export",
    "from_hf": "_hf_load",
    "load": "_load",
    "save": "_save",
    "verify": "_verify",
    "wait": "_background",
}

__all__ = [
    "CheckpointError",
    "Loaded",
    "Manager",
    "Saving",
    "convert",
    "export_hf",
    "from_hf",
    "load",
    "save",
    "verify",
    "wait",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'spmd.checkpoint' has no attribute {name!r}")
    module = importlib.import_module(f"spmd.checkpoint.{_HOME[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(set(globals()) | set(__all__))
