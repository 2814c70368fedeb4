"""`Team`: the processes that write or read a checkpoint together."""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Team:
    """This process among those of the run.

    Attributes:
        index: Which one this is; process 0 puts the checkpoint in place.
        count: How many there are.
    """

    index: int = 0
    count: int = 1


def current_team() -> Team:
    """The processes of this run; does not start a runtime to find out."""
    from spmd._runtime import runtime

    if runtime() == "jax":
        from spmd._batches import hosts

        return Team(hosts.host_index(), len(hosts.current_hosts()))
    if "torch_xla" not in sys.modules:
        return Team()
    from spmd._torch_xla import seam

    if not seam.runtime_is_up():
        return Team()
    return Team(seam.process_index(), seam.num_processes())


def shared_token(team: Team) -> str:
    """A word that no other save has, the same in every process.

    Args:
        team: The processes; every one must call this.

    Returns:
        Hexadecimal digits.
    """
    number = secrets.randbits(62)
    return f"{of_process_zero(team, number):016x}"


def of_process_zero(team: Team, number: int) -> int:
    """The number that process 0 passed.

    Args:
        team: The processes; every one must call this.
        number: An integer of 64 bits.
    """
    if team.count == 1:
        return number
    from spmd._batches import hosts

    return hosts.exchange([number])[hosts.current_hosts()[0][0]][0]


def all_agree(team: Team, good: bool) -> bool:
    """Whether every process says yes.

    Args:
        team: The processes; every one must call this.
        good: What this one says.
    """
    if team.count == 1:
        return good
    from spmd._batches import hosts

    return all(row[0] for row in hosts.exchange([int(good)]))
