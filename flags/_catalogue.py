"""`Catalogue`: every flag that an installed library accepts."""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from flags import _cache
from flags._flag import Channel, Flag
from flags._library import Library, library


@dataclass(frozen=True, slots=True, repr=False)
class Catalogue:
    """Every flag that one library accepts.

    Attributes:
        library: ``torch_xla``, ``jaxlib``, ``cuda`` or ``libtpu``.
        version: Its version.
        flags: By name.
    """

    library: str
    version: str
    flags: Mapping[str, Flag] = field(hash=False)

    def accepts(self, name: str, channel: Channel) -> bool:
        """Whether the library takes a flag.

        Args:
            name: Without dashes.
            channel: From where.

        Returns:
            True if it does.
        """
        flag = self.flags.get(name)
        return flag is not None and channel in flag.channels

    def in_channel(self, channel: Channel) -> tuple[Flag, ...]:
        """Flags that the library takes from somewhere.

        Args:
            channel: From where.

        Returns:
            By name.
        """
        return tuple(f for f in self.flags.values() if channel in f.channels)

    def __repr__(self) -> str:
        return f"Catalogue({self.library} {self.version}: {len(self.flags)} flags)"


def catalogue(name: str) -> Catalogue:
    """Every flag that an installed library accepts.

    Names and types are read from the library's file; nothing is loaded. What the file
    does not tell (which of them a variable takes, and defaults) is known for the
    versions that this package was made with. Another version is started once, in child
    processes, and asked (some 15 s); the answers are kept in the user's cache folder.

    Args:
        name: ``torch_xla``, ``jaxlib``, ``cuda`` or ``libtpu``.

    Returns:
        The catalogue.

    Raises:
        NotInstalledError: The library is not there; the message has the command.
        ValueError: There is no library of that name, or its file has another form.

    Example:
        >>> jaxlib = catalogue("jaxlib")
        >>> jaxlib.flags["xla_gpu_all_gather_combine_threshold_bytes"].type
        'int64'
    """
    entry = library(name)
    path, version = entry.find()
    return _catalogue(entry.name, str(path), version)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The flag that somebody may have meant.

    Args:
        name: What was written.
        known: Names that there are.

    Returns:
        The nearest; None where none is near.

    Example:
        >>> nearest("xla_gpu_enable_triton_gem", ["xla_gpu_enable_triton_gemm"])
        'xla_gpu_enable_triton_gemm'
    """
    plain = name.lower().replace("-", "_")
    near = difflib.get_close_matches(plain, sorted(known), n=1, cutoff=0.8)
    return near[0] if near else None


@functools.lru_cache(maxsize=8)
def _catalogue(name: str, path: str, version: str) -> Catalogue:
    entry = library(name)
    file = _file_name(entry, Path(path), version)
    from_us = _digest()
    flags = _load(file, from_us)
    if flags is None:
        flags = _read(entry, Path(path), version)
        content = {"from": from_us, "flags": [flag.as_json() for flag in flags]}
        _cache.save(file, json.dumps(content))
    return Catalogue(name, version, MappingProxyType({f.name: f for f in flags}))


def _file_name(entry: Library, path: Path, version: str) -> str:
    """A nightly build keeps its version, hence the size and time of the file."""
    there = path.stat()
    word = "".join(c if c.isalnum() or c in ".+-" else "_" for c in version)
    return f"{entry.name}-{word}-{there.st_size:x}-{there.st_mtime_ns:x}.json"


@functools.cache
def _digest() -> str:
    """Of what catalogues are made by: an older one is not read."""
    made_by = ("_catalogue.py", "_confirm.py", "_descriptor.py", "data/confirmed")
    folder = Path(__file__).parent
    files = [f for name in made_by for f in _files(folder / name)]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


def _files(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def _load(file: str, from_us: str) -> list[Flag] | None:
    text = _cache.load(file)
    try:
        content = json.loads(text or "{}")
        if content.get("from") != from_us:
            return None
        return [Flag.from_json(flag) for flag in content["flags"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # damaged: read again


def _read(entry: Library, path: Path, version: str) -> list[Flag]:
    from flags._confirm import confirm, shipped
    from flags._descriptor import read_flags

    options = read_flags(path, entry.protos)
    own = {flag.name for flag in read_flags(path)}  # of DebugOptions
    tpu = {f.name for proto in entry.protos[1:] for f in read_flags(path, [proto])}
    known = shipped(entry, version) or confirm(entry)
    found: dict[str, Flag] = {}

    def add(flag: Flag, channels: Iterable[Channel]) -> None:
        found[flag.name] = Flag(
            flag.name,
            flag.type,
            tuple(channels),
            known.defaults.get(flag.name),
            flag.choices,
            flag.repeated,
            flag.deprecated,
        )

    for flag in options:
        in_own = flag.name in own and flag.name not in known.absent
        in_tpu = flag.name in tpu
        channels: list[Channel] = []
        if in_own:
            channels.append("XLA_FLAGS")
        if in_tpu:
            channels.append("LIBTPU_INIT_ARGS")
        # A field of DebugOptions that is a message cannot be set from a text.
        settable = in_tpu or flag.type not in {"message", "map"}
        if settable and "options" in entry.channels:
            channels.append("options")
        if channels:
            add(flag, channels)
    for name, kind in known.extra.items():
        add(Flag(name, kind, ()), ["XLA_FLAGS"])
    for name, kind in known.init.items():
        ignored = name in known.ignored
        extra: list[Channel] = ["options"] if ignored else []
        add(Flag(name, kind, (), deprecated=ignored), ["LIBTPU_INIT_ARGS", *extra])
    return [found[name] for name in sorted(found)]
