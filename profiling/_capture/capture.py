"""`capture`: record live steps of torch_xla or jax as a profile."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, final

from profiling._capture.recorders import Recorder, device_work, recorders
from profiling._capture.session_folder import (
    checked,
    new_session,
    write,
    write_programs,
)
from spmd._host_spans import at_each_step, end_iteration, step_span
from spmd._warn import warn_user

_LAST_EVENTS_S = 0.01
"""A thread says that its work is done, and only then ends the event."""

_going_on: Capture | None = None


def capture(
    folder: str | os.PathLike[str], *, steps: range | int | None = None
) -> Capture:
    """Record what a block does on devices and on the host, as a profile.

    Works around whatever runs on torch_xla or jax. Read the result with
    `profiling.read_profile` or ``spmd profile``, or open it with ``tensorboard
    --logdir`` (with tensorboard-plugin-profile installed). Of CPU devices, for which
    XLA's profiler has no plane, planes are made of their operations, so that
    TensorBoard's tables show them; docs/tensorboard.md says how.

    With `steps` the block can be the whole training: recording begins at one step and
    ends before the step after the last, when the devices are done; before and after
    the loop runs as without. Steps are counted from 0 in the block, one for each call
    of a compiled step (`spmd.compile_step`, `spmd.Runner`). In another loop say what a
    step is::

        with profiling.capture("runs/a", steps=range(10, 13)) as capture:
            for batch in loader:
                with capture.step():
                    train_step(batch)
                    torch_xla.sync()

    With several processes every one must capture; each writes a file of its own into
    the same folder, which they must share.

    Args:
        folder: The run's folder; ``plugins/profile/TIME`` is made in it.
        steps: Which steps; a number means the first so many. None: the whole block.

    Returns:
        A context manager. Its ``path`` is the folder of this capture.

    Raises:
        TypeError: A folder that is no path, or `steps` that are neither a range nor a
            number.
        ValueError: A folder that cannot be written to, or steps that are none.
        RuntimeError: On entering: another capture is going on in this process, or
            neither jax nor torch_xla is imported. On leaving: no device did anything,
            the steps did not come, or the profile could not be written. Inside the
            loop nothing is raised: that waits for the end of the block.
    """
    return Capture(folder, _wanted(steps))


def _wanted(steps: range | int | None) -> range | None:
    if steps is None:
        return None
    if isinstance(steps, int) and not isinstance(steps, bool):
        steps = range(steps)
    if not isinstance(steps, range):
        raise TypeError(
            f"capture: steps={steps!r}; a range such as range(10, 13), or how many of "
            f"the first steps, is needed"
        )
    if steps.step != 1 or steps.start < 0 or not steps:
        raise ValueError(
            f"capture: steps={steps!r}; at least one step, from 0 on and without gaps, "
            f"is needed"
        )
    return steps


@final
class Capture:
    """A capture, made by `capture`.

    Args:
        folder: See `capture`.
        steps: See `capture`.
    """

    def __init__(self, folder: str | os.PathLike[str], steps: range | None) -> None:
        self.steps = steps
        self._given = folder
        self._folder = Path()
        self._path: Path | None = None
        self._count = itertools.count()
        self._seen = 0
        self._ignore_steps: Any = None
        self._sessions: list[tuple[Recorder, Any]] = []
        self._failure: str | None = None

    @property
    def path(self) -> Path:
        """Folder of this capture.

        Raises:
            RuntimeError: Nothing was written (yet).
        """
        if self._path is None:
            raise RuntimeError(
                f"{self!r} has written nothing: {self._failure or 'it has not ended'}"
            )
        return self._path

    def step(self) -> AbstractContextManager[None]:
        """Say what one step is, in a loop that calls no compiled step.

        Returns:
            A context manager to put around it; in the profile it is a step.
        """
        return step_span()

    def __enter__(self) -> Capture:
        global _going_on
        if _going_on is not None:
            raise RuntimeError(
                f"capture: {_going_on!r} is going on in this process, and there can be "
                f"one at a time; leave its block first"
            )
        self._folder = checked(self._given)
        self._path, self._failure = None, None
        self._count, self._seen = itertools.count(), 0
        if self.steps is None:
            self._start()
        else:
            self._ignore_steps = at_each_step(self._next_step)
        _going_on = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _going_on
        _going_on = None
        if self._ignore_steps is not None:
            self._ignore_steps()
        try:
            self._stop()
        except (RuntimeError, OSError) as failure:
            self._failure = str(failure)
        if kind is not None:
            return  # what went wrong in the block matters more
        if self._path is None:
            self._failure = self._failure or self._why_not()
            raise RuntimeError(f"capture: {self._failure}")
        if self.steps is not None and self._seen < self.steps.stop:
            warn_user(
                f"capture: the block ended after {self._seen} steps, so that of "
                f"{self.steps!r} {self._seen - self.steps.start} were captured"
            )

    def _next_step(self) -> None:
        """Before each step; a training must not end because of its profile."""
        assert self.steps is not None
        index = next(self._count)
        self._seen = index + 1
        if index == self.steps.start:
            try:
                self._start()
            except (RuntimeError, OSError) as error:
                self._note(error)
        elif index == self.steps.stop:
            self._seen = index
            if self._ignore_steps is not None:
                self._ignore_steps()
            try:
                self._stop()
            except (RuntimeError, OSError) as error:
                self._note(error)

    def _start(self) -> None:
        found = recorders()
        for recorder in found:
            if recorder.seam.is_recording():
                raise RuntimeError(
                    f"another profiler records what {recorder.name} does in this "
                    f"process (its own start_trace, or a client of a profiler server), "
                    f"and there can be one at a time; try again when it is done"
                )
        for recorder in found:
            recorder.seam.wait()  # for the steps before the first
        self._sessions = [(r, r.seam.Session()) for r in found]

    def _stop(self) -> None:
        sessions, self._sessions = self._sessions, []
        if not sessions:
            return
        first = sessions[0][0]
        for recorder, session in sessions:
            # Waiting for all runs something small: not where nothing else did, or the
            # recording would seem to hold a device's work.
            worked = session.worked()
            recorder.seam.wait(dropped=recorder is first if worked is None else worked)
        end_iteration()
        time.sleep(_LAST_EVENTS_S)
        spaces = [(recorder, session.stop()) for recorder, session in sessions]
        good = [(r, space) for r, space in spaces if device_work(space)]
        good.sort(key=lambda one: device_work(one[1]), reverse=True)
        if not good:
            return
        path, team = new_session(self._folder, first), first.seam.team()
        for number, (recorder, space) in enumerate(good):
            write(path, space, team, suffix=f"_{recorder.name}" if number else "")
        if team[0] == 0:
            write_programs(path)
        self._path = path

    def _note(self, error: BaseException) -> None:
        self._failure = str(error)
        warn_user(f"capture: {error}")

    def _why_not(self) -> str:
        if self.steps is None or self._seen > self.steps.start:
            return (
                "no device did anything in the block: run steps inside it, and with "
                "lazy torch_xla call torch_xla.sync() after each"
            )
        if not self._seen:
            return (
                "no step was seen in the block: put `with capture.step():` around each "
                "iteration of a loop that calls no compiled step"
            )
        return (
            f"only {self._seen} steps ran in the block, so that none of {self.steps!r} "
            f"was captured"
        )

    def __repr__(self) -> str:
        steps = "" if self.steps is None else f", steps={self.steps!r}"
        return f"capture({os.fspath(self._given)!r}{steps})"
