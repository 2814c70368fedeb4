"""Read one HLO file, whatever its form: text or proto, packed or not."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from profiling._hlo.binary import read_binary
from profiling._hlo.damage import in_bytes
from profiling._hlo.module import Module
from profiling._hlo.no_gc import no_gc
from profiling._hlo.text import read_text

ZIP_MAGIC = b"PK\x03\x04"
_GZIP_MAGIC = b"\x1f\x8b"
_LOOK = 512
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error)


def load_module(path: str | Path) -> Module:
    """Read one HLO module.

    Args:
        path: HLO text, or a serialised `HloModuleProto`, `HloProto` or `HloSnapshot`;
            gzipped or not. The content decides, not the name.

    Returns:
        The module.

    Raises:
        FileNotFoundError: There is no such file.
        IsADirectoryError: It is a directory.
        ValueError: Damaged, cut short, or no HLO; says where.
    """
    path = Path(path)
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        if not packed:
            return _load(raw, raw, str(path))
        with gzip.GzipFile(fileobj=raw) as unpacked:
            return _load(cast(IO[bytes], unpacked), raw, str(path))


def _load(file: IO[bytes], raw: IO[bytes], source: str) -> Module:
    try:
        start = file.read(_LOOK)
        file.seek(0)
        data = b"" if _is_text(start) else file.read()
    except _BROKEN as error:
        raise _unpacking(error, raw, source) from None
    if not start:
        raise in_bytes(source, "no HLO: the file is empty", offset=0)
    with no_gc():
        if not data:
            return read_text(_guarded(file, raw, source), source=source)
        unpacked = "" if file is raw else " (unpacked)"
        return read_binary(data, source=source + unpacked)


def _guarded(file: IO[bytes], raw: IO[bytes], source: str) -> Iterator[bytes]:
    try:
        yield from file
    except _BROKEN as error:
        raise _unpacking(error, raw, source) from None


def _unpacking(error: Exception, raw: IO[bytes], source: str) -> ValueError:
    return in_bytes(
        source, f"the gzip data is damaged or cut short: {error}", offset=raw.tell()
    )


def _is_text(start: bytes) -> bool:
    """Whether a file starts as text: no byte that text never has."""
    return not any(b < 9 or 13 < b < 32 for b in start)
