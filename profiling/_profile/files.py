"""The files of a profile: one for each process of one session."""

from __future__ import annotations

import re
from pathlib import Path

SUFFIX = ".xplane.pb"
_TIME = re.compile(r"\d{4}(_\d\d){5}.*")  # 2026_11_30_04_53_03, as profilers name it
_HINT = (
    "a profile is a folder with *.xplane.pb, as profiling.capture(DIR), "
    "torch_xla.debug.profiler or jax.profiler.trace write it below "
    "DIR/plugins/profile/TIME"
)


def profile_files(path: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Find the files of one session.

    Args:
        path: One ``*.xplane.pb``, the folder of a session, or any folder above some.

    Returns:
        The files by name, and notes: of several sessions the newest is taken.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A folder without any profile below it.
    """
    if path.is_file():
        return (path,), ()
    if not path.is_dir():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    found: dict[Path, list[Path]] = {}
    for file in sorted(path.rglob(f"*{SUFFIX}")):
        found.setdefault(file.parent, []).append(file)
    if path in found:
        return tuple(found[path]), ()
    if not found:
        others = sum(1 for _ in path.iterdir())
        raise ValueError(f"{path}: no profile among {others} entries; {_HINT}")
    newest = max(found, key=_age)
    notes = ()
    if len(found) > 1:
        notes = (
            f"{path} has {len(found)} sessions; this is the newest, {newest.name}; "
            f"give another one's folder to read that",
        )
    return tuple(found[newest]), notes


def host_of(file: Path) -> str:
    """What the process that wrote a file is called.

    Args:
        file: One of `profile_files`.

    Returns:
        Its name without the suffix.

    Example:
        >>> host_of(Path("plugins/profile/2026_11_30/node-3.xplane.pb"))
        'node-3'
    """
    return file.name.removesuffix(SUFFIX)


def _age(folder: Path) -> tuple[bool, str, float]:
    """Sessions are named by their time; copying them loses that of the files."""
    is_time = bool(_TIME.fullmatch(folder.name))
    written = max(f.stat().st_mtime for f in folder.glob(f"*{SUFFIX}"))
    return is_time, folder.name if is_time else "", written
