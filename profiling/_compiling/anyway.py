"""`compile_anyway`: the schedule also of a program that a device has no room for."""

from __future__ import annotations

from collections.abc import Mapping

from profiling._analyse import analyse
from profiling._compiling.compile import compile
from profiling._compiling.compiled import CompileError, FlagValue
from profiling._compiling.program import Progress
from profiling._schedule import Schedule
from profiling._targets.target import Target
from spmd._program.program import Program


def compile_anyway(
    program: Program,
    target: Target,
    *,
    flags: Mapping[str, FlagValue],
    progress: Progress | None = None,
) -> Schedule:
    """Compile a program; what does not fit is what one wants explained most.

    Args:
        program: For as many devices as the target has.
        target: What to compile for.
        flags: XLA flags by name.
        progress: See `profiling.compile`.

    Returns:
        The schedule; its `over_bytes` say what is missing.

    Raises:
        CompileError: The compiler made nothing.
        ValueError: See `profiling.compile`.
    """
    try:
        return compile(program, target, flags=flags, progress=progress)
    except CompileError as error:
        if error.compiled is None:
            raise
        return analyse(error.compiled, program=program)
