"""`Manager`: the checkpoints of a run, the newest kept, the newest good one found."""

from __future__ import annotations

import os
import re
from typing import Any, final

from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._warn import warn_user
from spmd.checkpoint import _background, _manifest
from spmd.checkpoint._error import CheckpointError
from spmd.checkpoint._folder import WRITING, folder_at
from spmd.checkpoint._load import Loaded, load
from spmd.checkpoint._save import save
from spmd.checkpoint._team import all_agree, current_team, of_process_zero

_NAME = re.compile(r"step-(\d+)")


@final
class Manager:
    """Saves every so many steps, keeps the newest, and restores the newest good one.

    Leaving its context waits for a save that is still going on.

    Args:
        folder: Where the checkpoints go, each in a folder ``step-00000100``; a path or
            an fsspec URL.
        keep: How many of the newest to keep; None for all.
        every: Save after every so many steps.
        asynchronous: Write in the background, see `save`.
        when_busy: See `save`.

    Attributes:
        keep: See above.
        every: See above.

    Raises:
        ValueError: `keep` or `every` below 1, or a URL of an unknown protocol.

    Example::

        manager = spmd.checkpoint.Manager("runs/a", keep=3, every=100)
        start = manager.restore(model, optimizer)
        for step in range(start.step + 1 if start else 0, 1000):
            ...
            manager.save(step, model, optimizer)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        every: int = 1,
        asynchronous: bool = False,
        when_busy: _background.WhenBusy = "wait",
    ) -> None:
        for name, value in (("keep", keep), ("every", every)):
            if value is not None and value < 1:
                raise ValueError(f"Manager: {name}={value}; at least 1 is needed")
        self._url = os.fspath(folder).rstrip("/")
        self._folder = folder_at(folder)
        self.keep = keep
        self.every = every
        self._asynchronous = asynchronous
        self._when_busy: _background.WhenBusy = when_busy

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, in ascending order."""
        found = [int(m[1]) for n in self._folder.names() if (m := _NAME.fullmatch(n))]
        return sorted(
            step
            for step in found
            if self._folder.inside(_name(step)).exists(_manifest.NAME)
        )

    def path(self, step: int) -> str:
        """Where the checkpoint of a step is.

        Args:
            step: The step.
        """
        return f"{self._url}/{_name(step)}"

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        force: bool = False,
        **options: Any,
    ) -> bool:
        """Save if it is time, and delete what is too old once that is complete.

        Args:
            step: The step that was just done.
            model: See `save`.
            optimizer: See `save`.
            force: Save at any step, such as the last.
            **options: ``scheduler``, ``loader``, ``extra`` and others of `save`.

        Returns:
            Whether it was time.

        Raises:
            CheckpointError: See `save`.
            TypeError: See `save`.
            ValueError: See `save`.
        """
        if not force and step % self.every:
            return False
        _background.settle(self._when_busy)
        self._delete_old()
        save(
            self.path(step),
            model,
            optimizer,
            step=step,
            asynchronous=self._asynchronous,
            when_busy=self._when_busy,
            overwrite=True,
            **options,
        )
        if not self._asynchronous:
            self._delete_old()
        return True

    def restore(
        self, model: nn.Module, optimizer: Optimizer | None = None, **options: Any
    ) -> Loaded | None:
        """Load the newest checkpoint that is good; warns of each that is not.

        Args:
            model: See `load`.
            optimizer: See `load`.
            **options: ``scheduler``, ``loader``, ``extra`` and others of `load`.

        Returns:
            What was loaded; None if there is no checkpoint.

        Raises:
            CheckpointError: There are checkpoints, and all are damaged.
            ValueError: One that does not fit, see `load`.
        """
        self.wait()
        team = current_team()
        damaged: list[str] = []
        for step in reversed(self._agreed_steps()):
            error, loaded = None, None
            try:
                loaded = load(self.path(step), model, optimizer, **options)
            except CheckpointError as caught:
                error = caught
            if all_agree(team, error is None):
                return loaded
            damaged.append(str(error or f"{self.path(step)}: another process failed"))
            warn_user(
                f"Manager: the checkpoint of step {step} cannot be used; trying the "
                f"one before. {damaged[-1]}"
            )
        if damaged:
            raise CheckpointError(
                f"Manager: no checkpoint in {self._url} can be used: "
                f"{'; '.join(damaged)}"
            )
        return None

    def _agreed_steps(self) -> list[int]:
        """The same steps in every process: what process 0 sees."""
        steps, team = self.steps(), current_team()
        if team.count == 1:
            return steps
        num = of_process_zero(team, len(steps))
        padded = (steps + [0] * num)[:num]
        return [of_process_zero(team, step) for step in padded]

    def wait(self) -> None:
        """Wait for a save that is still going on.

        Raises:
            CheckpointError: It failed.
        """
        _background.settle()
        self._delete_old()

    def _delete_old(self) -> None:
        """Keep the newest, and nothing of saves that were killed."""
        if current_team().index > 0:
            return
        stale = [
            n for n in self._folder.names() if n.startswith("step-") and WRITING in n
        ]
        self._folder.remove(*stale)
        steps = self.steps() if self.keep is not None else []
        for step in steps[: -(self.keep or 0)]:
            old = self._folder.inside(_name(step))
            old.remove(_manifest.NAME)  # from here on it is none
            self._folder.remove(_name(step))

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def __repr__(self) -> str:
        return f"Manager({self._url!r}, keep={self.keep}, every={self.every})"


def _name(step: int) -> str:
    return f"step-{step:08d}"
