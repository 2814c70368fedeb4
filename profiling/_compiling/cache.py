"""Compiled programs in files, so that the same compile is done once."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from profiling._compiling.compiled import Compiled, Memory
from profiling._targets.target import Target

FORMAT = 2  # 1 had no warnings where the environment silenced them
"""Raised when the same key would mean something else, or a file has another form."""

_JSON = "compiled.json"
_BYTES = ("hlo", "partitioned", "buffers")
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


def default_dir() -> Path:
    """The user's own cache folder.

    Returns:
        ``$XDG_CACHE_HOME/xla-spmd`` or ``~/.cache/xla-spmd``.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "xla-spmd"


def key_of(content: Mapping[str, Any]) -> str:
    """Name of the file for a compile.

    Args:
        content: All that the result depends on.

    Returns:
        sha256 in hex.
    """
    text = json.dumps({"format": FORMAT, **content}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def load(folder: Path, key: str, target: Target) -> Compiled | None:
    """Read a compile.

    Args:
        folder: The cache.
        key: From `key_of`.
        target: What it was compiled for.

    Returns:
        None where there is none, or the file is damaged.
    """
    try:
        data = _path(folder, key).read_bytes()
    except OSError:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = {n: archive.read(n) for n in archive.namelist()}  # checks each crc
        said = json.loads(parts[_JSON])
        return Compiled(
            target=target,
            hlo=parts["hlo"],
            partitioned=parts.get("partitioned"),
            buffers=parts.get("buffers"),
            memory=Memory(**said.pop("memory")),
            warnings=tuple(said.pop("warnings")),
            from_cache=True,
            **said,
        )
    except _DAMAGE:
        return None


def save(folder: Path, key: str, compiled: Compiled) -> None:
    """Write a compile; there is a whole file or none at any time.

    Args:
        folder: The cache; made where it is missing. Where it cannot be written, a
            warning says so.
        key: From `key_of`.
        compiled: What to write.
    """
    said = {
        "fingerprint": compiled.fingerprint,
        "flags": dict(compiled.flags),
        "memory": asdict(compiled.memory),
        "compile_s": compiled.compile_s,
        "versions": dict(compiled.versions),
        "warnings": list(compiled.warnings),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
    except OSError as error:
        warnings.warn(
            f"{folder}: what was compiled is not kept ({error.strerror}); give another "
            f"cache_dir",
            stacklevel=3,
        )
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_packed(said, compiled))
        os.replace(name, _path(folder, key))
    finally:
        Path(name).unlink(missing_ok=True)


def _packed(said: Mapping[str, Any], compiled: Compiled) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(
        content, "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as archive:
        archive.writestr(_JSON, json.dumps(said))
        for name in _BYTES:
            data = getattr(compiled, name)
            if data is not None:
                archive.writestr(name, data)
    return content.getvalue()


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}.compiled"
