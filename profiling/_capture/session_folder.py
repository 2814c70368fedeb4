"""Where a capture is written: a folder per capture, as TensorBoard's plugin reads it.

``FOLDER/plugins/profile/2026_11_30_05_12_07/HOST.xplane.pb``: the plugin takes each
file for one host, and so does `profiling.read_profile`.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import socket
import sys
import tempfile
import time
from pathlib import Path

from profiling._capture.recorders import Recorder, with_host
from spmd._warn import warn_user

_PATIENCE_S = 30.0
_captures = itertools.count()


def checked(folder: str | os.PathLike[str]) -> Path:
    """The folder of a run, made and found writable.

    Args:
        folder: What the user gave.

    Returns:
        An absolute path: the program may change its working folder meanwhile.

    Raises:
        TypeError: No path.
        ValueError: A URL, or a folder that cannot be written to.
    """
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"capture: {folder!r} is no path; give a folder")
    text = os.fspath(folder)
    if "://" in text:
        raise ValueError(
            f"capture: {text!r} is a URL; give a folder on a disk, and copy it from "
            f"there"
        )
    path = Path(text).absolute()
    profiles = path / "plugins" / "profile"
    try:
        profiles.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=profiles):
            pass
    except OSError as error:
        raise ValueError(
            f"capture: {path} cannot be written to ({error.strerror}); give another "
            f"folder"
        ) from error
    return path


def new_session(folder: Path, recorder: Recorder) -> Path:
    """Make the folder of one capture, the same for all processes of a run.

    Args:
        folder: From `checked`.
        recorder: Who knows the processes. With several, every one must capture.

    Returns:
        The folder, named after the time at which process 0 ended.

    Raises:
        OSError: It cannot be made.
    """
    profiles = folder / "plugins" / "profile"
    index, count = recorder.seam.team()
    if count == 1:
        return _made(profiles)
    number = next(_captures)
    path = _made(profiles) if index == 0 else None
    name = _of_process_zero(path.name if path else None, recorder, number)
    if name is None:
        warn_user(
            f"capture: process 0 ended no capture within {_PATIENCE_S:.0f} s, so what "
            f"process {index} recorded is in a folder of its own; have every process "
            f"capture the same steps"
        )
        return _made(profiles)
    path = profiles / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def _made(profiles: Path) -> Path:
    stem = time.strftime("%Y_%m_%d_%H_%M_%S")
    for number in itertools.count():
        path = profiles / (f"{stem}_{number}" if number else stem)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise AssertionError("counting ended")


def _of_process_zero(name: str | None, recorder: Recorder, number: int) -> str | None:
    """Tell the others the name, or hear it; None where it does not come in time."""
    if recorder.name == "jax":
        from spmd._pjrt import processes as pjrt_processes

        key = f"spmd/capture/{number}"
        if name is None:
            return pjrt_processes.read(key, timeout_s=_PATIENCE_S)
        pjrt_processes.publish(key, name)
        return name
    from spmd.checkpoint._team import Team, of_process_zero

    digits = int(name.replace("_", "")) if name else 0
    team = Team(*recorder.seam.team())
    return _with_bars(of_process_zero(team, digits))


def _with_bars(digits: int) -> str:
    """The name of which these are the digits.

    Example:
        >>> _with_bars(20261130051207), _with_bars(202611300512072)
        ('2026_11_30_05_12_07', '2026_11_30_05_12_07_2')
    """
    parts = re.fullmatch(r"(\d{4})" + r"(\d\d)" * 5 + r"(\d*)", str(digits))
    assert parts is not None
    return "_".join(part for part in parts.groups() if part)


def write(
    session: Path, space: bytes, team: tuple[int, int], *, suffix: str = ""
) -> Path:
    """Write what one process recorded.

    Args:
        session: From `new_session`.
        space: A serialised ``XSpace``.
        team: This process, and how many there are.
        suffix: Tells two recordings of one process apart.

    Returns:
        The file, which is whole or absent.

    Raises:
        OSError: It cannot be written.
    """
    host = re.sub(r"[^\w.-]", "_", socket.gethostname()) or "host"
    index, count = team
    name = f"{host}_p{index}" if count > 1 else host
    path = session / f"{name}{suffix}.xplane.pb"
    _put(path, with_host(_for_tables(space, path), host))
    return path


def complete(session: Path) -> None:
    """Add to profiles that another program wrote what `write` adds.

    Args:
        session: Their folder.
    """
    for path in sorted(session.glob("*.xplane.pb")):
        try:
            space = path.read_bytes()
            more = _for_tables(space, path)
            if len(more) > len(space):
                _put(path, more)
        except OSError as error:
            warn_user(
                f"capture: {path} is left as it is ({error.strerror}): TensorBoard "
                f"shows no operations of CPU devices in it"
            )


def _put(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(data)
    os.replace(partial, path)


def _for_tables(space: bytes, path: Path) -> bytes:
    """Add planes of CPU devices, or warn: a training must not end because of them."""
    from profiling._capture.device_planes import with_device_planes

    try:
        return with_device_planes(space, path)
    except Exception as error:  # anyone's HLO, and only for some tables
        warn_user(
            f"capture: TensorBoard will show no operations of CPU devices in {path}, "
            f"since they could not be read: {type(error).__name__}: {error}"
        )
        return space


def write_programs(session: Path) -> None:
    """Write the programs that this process runs beside its profile.

    They name tensors, modules and mesh axes, which no profile does.

    Args:
        session: From `new_session`.

    Raises:
        OSError: One cannot be written.
    """
    running = sys.modules.get("spmd._jax.running")
    for program in running.programs() if running else ():
        stem = re.sub(r"[^\w.-]", "_", program.name)
        taken = sum(1 for _ in session.glob(f"{glob.escape(stem)}*.spmd"))
        program.save(session / f"{stem}{f'_{taken}' if taken else ''}.spmd")
