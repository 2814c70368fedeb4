"""Put what all processes wrote in place, or nothing.

Each process writes a file of its own and then says what is in it; process 0 waits for
all, and writes the manifest. They meet in the folder, which all must see.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from spmd.checkpoint import _dcp, _manifest
from spmd.checkpoint._error import CheckpointError
from spmd.checkpoint._folder import Folder
from spmd.checkpoint._manifest import Manifest
from spmd.checkpoint._team import Team

T = TypeVar("T")
TIMEOUT_S = 1800.0
_POLL_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """What is needed to put a checkpoint in place.

    Attributes:
        target: Where the checkpoint is to be.
        token: The same in all processes, unlike that of any other save.
        team: The processes.
        step: The training step.
        aliases: See `Manifest`.
        num_processes: How many processes saved; None for those of `team`.
        timeout_s: How long to wait for the other processes.
    """

    target: Folder
    token: str
    team: Team
    step: int | None
    aliases: dict[str, str]
    num_processes: int | None = None
    timeout_s: float = TIMEOUT_S


def write_and_commit(job: Commit, write: Callable[[Folder, str], Manifest]) -> None:
    """Write this process's part; with those of the others it becomes the checkpoint.

    Args:
        job: What, and where.
        write: Called with the folder and the name of the file to write.

    Raises:
        CheckpointError: It could not be written here or by another process. What was
            there before is still there.
    """
    folder = None
    try:
        folder = job.target.begin(job.token)
        part = write(folder, _data_file(job, job.team.index))
        if job.team.index > 0:
            folder.replace(_part_file(job, job.team.index), part.to_json().encode())
            _await_manifest(job, folder)
            return
        parts = [part, *(_await_part(job, folder, i) for i in _others(job))]
        before = set(folder.names())
        _put_in_place(job, folder, _manifest.merged(parts))
    except BaseException as error:
        _give_up(job, folder, error)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise CheckpointError(
                f"{job.target.url}: the checkpoint could not be written ({reason}); "
                f"what was there before is unchanged. Free some space, or save to "
                f"another place"
            ) from error
        raise
    _clean(job, before)


def _put_in_place(job: Commit, folder: Folder, manifest: Manifest) -> None:
    manifest = dataclasses.replace(
        manifest,
        step=job.step,
        num_processes=job.num_processes or job.team.count,
        token=job.token,
        aliases=job.aliases,
        written=_versions(),
    )
    folder.replace(_manifest.NAME, manifest.to_json().encode())
    folder.replace(_dcp.NAME, _dcp.metadata_file(manifest))
    job.target.publish(folder)


def _clean(job: Commit, before: set[str]) -> None:
    """Delete what an earlier checkpoint in this place, or a killed save, has left."""
    kept = {_data_file(job, i) for i in range(job.team.count)}
    ours = {n for n in before if n.endswith((".distcp", ".part", ".failed", ".new"))}
    job.target.remove(*sorted(ours - kept))


def _await_part(job: Commit, folder: Folder, process: int) -> Manifest:
    name = _part_file(job, process)

    def find() -> Manifest | None:
        if not folder.exists(name):
            return None
        return Manifest.from_json(folder.read(name), where=f"{folder.url}/{name}")

    return _wait_for(job, folder, find, f"process {process} has not written its part")


def _await_manifest(job: Commit, folder: Folder) -> None:
    def find() -> bool | None:
        return _is_committed(job) or None

    _wait_for(job, folder, find, "process 0 has not put the checkpoint in place")


def _is_committed(job: Commit) -> bool:
    if not job.target.exists(_manifest.NAME):
        return False
    text = job.target.read(_manifest.NAME)
    return Manifest.from_json(text, where=job.target.url).token == job.token


def _wait_for(
    job: Commit, folder: Folder, find: Callable[[], T | None], what: str
) -> T:
    deadline = time.monotonic() + job.timeout_s
    while True:
        try:
            found = find()
        except FileNotFoundError:  # it was renamed in between
            found = None
        if found is not None:
            return found
        for process in range(job.team.count):
            name = _failed_file(job, process)
            if folder.exists(name):
                raise CheckpointError(
                    f"{job.target.url}: process {process} could not write its part: "
                    f"{folder.read(name).decode()}"
                )
        if time.monotonic() > deadline:
            raise CheckpointError(
                f"{job.target.url}: {what} after {job.timeout_s:.0f} s. Every process "
                f"must call save, and see the same folder"
            )
        time.sleep(_POLL_S)


def _give_up(job: Commit, folder: Folder | None, error: BaseException) -> None:
    """Delete what this process wrote, and tell the others."""
    if folder is None:
        return
    try:
        if _is_committed(job):
            return  # only something after that went wrong
        mine = [_data_file(job, job.team.index), _part_file(job, job.team.index)]
        folder.remove(*mine, f"{_manifest.NAME}.new")
        if job.team.count > 1:
            folder.replace(_failed_file(job, job.team.index), str(error).encode())
        elif folder.url != job.target.url:
            folder.remove("")
    except (OSError, CheckpointError):
        pass  # the first error says more


def _data_file(job: Commit, process: int) -> str:
    return f"__{process}_{job.token}.distcp"


def _part_file(job: Commit, process: int) -> str:
    return f"{process}-{job.token}.part"


def _failed_file(job: Commit, process: int) -> str:
    return f"{process}-{job.token}.failed"


def _others(job: Commit) -> range:
    return range(1, job.team.count)


def _versions() -> dict[str, str]:
    found = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    for name in ("xla-spmd", "torch", "torch_xla"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
