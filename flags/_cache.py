"""Small JSON files in the user's cache folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def folder() -> Path:
    """Where catalogues are kept.

    Returns:
        ``$XDG_CACHE_HOME/xla-spmd/flags`` or ``~/.cache/xla-spmd/flags``.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "xla-spmd" / "flags"


def load(name: str) -> str | None:
    """Read a file.

    Args:
        name: Of the file.

    Returns:
        Its text; None where it is not there.
    """
    try:
        return (folder() / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def save(name: str, text: str) -> None:
    """Write a file; it is there as a whole or not at all.

    A folder that cannot be written is no error: the next process asks again.

    Args:
        name: Of the file.
        text: Its content.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder(), prefix=".", suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, folder() / name)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
