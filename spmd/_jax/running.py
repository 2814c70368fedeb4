"""Programs that are being run: what a profile of this process can be joined with."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spmd._jax.runner import Runner
    from spmd._program.program import Program

_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


def note(runner: Runner) -> None:
    """Count a runner in, for as long as it lives.

    Args:
        runner: One that was just compiled.
    """
    _runners.add(runner)


def programs() -> list[Program]:
    """Programs of the runners that are alive.

    Returns:
        Each once, by name.
    """
    found = {r.program.fingerprint: r.program for r in list(_runners)}
    return sorted(found.values(), key=lambda program: program.name)
