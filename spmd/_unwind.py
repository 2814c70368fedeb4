"""Leave what a call that failed left open, and let go of what it held.

An error keeps the frames that it came through, and all that is in them, for as long as
someone keeps the error: a notebook does until the next one.

`torch.utils.checkpoint.checkpoint` enters its contexts, dispatch modes among them, in a
generator that it does not close where the function raises. They are left when Python
drops the error, while something else is running; each mode then takes another one off
torch's stack, and one that nobody else holds is freed before torch gives it back (seen
in torch 2.9). The process ends, at some later point.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, GeneratorType
from typing import Any

from torch.utils import _python_dispatch


@contextmanager
def modes_held() -> Iterator[None]:
    """Inside, no mode is freed while torch takes it off its stack.

    Yields:
        Nothing.
    """
    original = _python_dispatch._pop_mode

    def pop(key: Any = None) -> Any:
        held = _modes()
        popped = original(key)
        del held
        return popped

    _python_dispatch._pop_mode = pop
    try:
        yield
    finally:
        _python_dispatch._pop_mode = original


@contextmanager
def checkpoints_left() -> Iterator[None]:
    """Where an error leaves this context, the checkpointed calls in it are over.

    Yields:
        Nothing.
    """
    try:
        yield
    except BaseException as error:
        leave_checkpoints(error)
        raise


def leave_checkpoints(error: BaseException) -> None:
    """Leave the contexts of the checkpointed calls that an error came through.

    Args:
        error: The error, with its traceback.
    """
    # The step's own modes are left already, and took these off the stack: held here,
    # those that are still on it outlive that.
    held = _modes()
    for frame in _frames(error):
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            # Not frame.f_locals: before Python 3.13 the frame would keep that copy,
            # which clearing it does not empty. Of a frame that runs this gives nothing.
            for thing in gc.get_referents(frame):
                if isinstance(thing, GeneratorType):
                    thing.close()
    del held


def drop_values(error: BaseException) -> None:
    """Have an error keep no values of the calls that it came through and ended.

    Args:
        error: The error, with its traceback.
    """
    leave_checkpoints(error)  # in order; clearing begins at the outermost
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)


def _modes() -> list[Any]:
    """The dispatch modes that are entered, and with that a hold on them."""
    return _python_dispatch._get_current_dispatch_mode_stack()


def _chain(error: BaseException) -> list[BaseException]:
    """An error and those that led to it, the first one first."""
    found: dict[int, BaseException] = {}
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) not in found:
            found[id(one)] = one
            led = (one.__context__, one.__cause__)
            waiting += [e for e in led if e is not None]
    return [*reversed(found.values())]


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Frames of an error and of those that led to it, what was entered last first."""
    for one in _chain(error):
        walked = [frame for frame, _ in traceback.walk_tb(one.__traceback__)]
        yield from reversed(walked)
