"""Have several processes write the files of one folder, which appears at the end.

A failure of one is told to all. Bringing a weight to a process is work of all of them,
so one that cannot write goes on with that until the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spmd.checkpoint._error import CheckpointError
from spmd.checkpoint._folder import Folder, written_beside
from spmd.checkpoint._read import Advance
from spmd.checkpoint._safetensors import File, write_files
from spmd.checkpoint._team import Team, all_agree, shared_token


def write_share(
    folder: Folder,
    files: Sequence[File],
    tensor: Callable[[str], torch.Tensor],
    team: Team,
    *,
    advance: Advance,
) -> OSError | None:
    """Write every so many-th file.

    Args:
        folder: Where to.
        files: All of them, the same in every process.
        tensor: Gives each tensor on the CPU; called for all, in order, in every
            process.
        team: The processes.
        advance: Called with the number of bytes after each tensor.

    Returns:
        Why this process could not write its share.
    """
    problem = None
    for i, file in enumerate(files):
        rest = list(file.tensors)

        def take(name: str, rest: list[str] = rest) -> torch.Tensor:
            rest.remove(name)
            return tensor(name)

        if i % team.count == team.index and problem is None:
            try:
                write_files(folder, [file], take, advance=advance)
            except OSError as error:
                problem = error
        for name in rest if team.count > 1 else ():
            advance(tensor(name).nbytes)
    return problem


def write_together(
    target: Folder,
    team: Team,
    write: Callable[[Folder], OSError | None],
    finish: Callable[[Folder], None],
) -> None:
    """Write a folder.

    Args:
        target: The folder, the same in every process.
        team: The processes; every one must call this.
        write: Writes the share of this process; returns why it could not.
        finish: Called in process 0 when all have written.

    Raises:
        CheckpointError: A process could not write. Nothing is left of the folder.
    """
    token = shared_token(team)
    if team.index > 0:
        _agree(target, team, _begin(target, token))
        _agree(target, team, write(target.begin(token)))
        if not all_agree(team, True):
            raise CheckpointError(f"{target.url}: process 0 could not put it in place")
        return
    if team.count > 1:
        _agree(target, team, _begin(target, token))
    agreed = False
    try:
        with written_beside(target, token) as folder:
            _agree(target, team, write(folder))
            agreed = True
            finish(folder)
    except BaseException:
        if agreed:
            all_agree(team, False)
        raise
    all_agree(team, True)


def _begin(target: Folder, token: str) -> OSError | None:
    try:
        target.begin(token)
    except OSError as error:
        return error
    return None


def _agree(target: Folder, team: Team, problem: OSError | None) -> None:
    """Have all go on or none."""
    good = all_agree(team, problem is None)
    if problem is not None and team.count == 1:
        raise problem
    if problem is not None:
        reason = problem.strerror or str(problem)
        raise CheckpointError(
            f"{target.url} could not be written by process {team.index} ({reason}); "
            f"nothing is left of it"
        ) from problem
    if not good:
        raise CheckpointError(
            f"{target.url}: another process could not write its files; nothing is left "
            f"of them"
        )
