"""Compile a step for devices that are not here, and see what became of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from profiling._analyse import analyse
from profiling._compiling.compiled import CompileError, FlagValue
from profiling._compiling.program import Progress, compile_program
from profiling._schedule import Schedule
from profiling._targets.target import Target
from spmd._program.program import Program


def compile(
    program: Program,
    target: Target | str,
    *,
    flags: Mapping[str, FlagValue] | None = None,
    timeout_s: float = 1800.0,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Schedule:
    """Compile a program with a target's own compiler, or read it from the cache.

    The compiler runs in a process of its own and sees the flags given here and no
    others.

    Args:
        program: For as many devices as the target has.
        target: A target or its text, such as ``h100:2x8``.
        flags: XLA flags by name. For TPUs those that torch_xla sets where a chip is
            present come on top, unless given here.
        timeout_s: Seconds after which the compiler is stopped.
        cache_dir: Where results are kept; None for the user's cache folder.
        progress: Called with the target's text and the seconds so far, about twice a
            second while the compiler runs.

    Returns:
        Memory, collectives and timeline; the compiler's own output is its `compiled`.

    Raises:
        CompileError: The compiler crashed, refused a flag, took too long, is not
            installed or locked, or the program is too big for the target: see its
            `kind`.
        ValueError: A target that is none or has another number of devices, or a flag
            that is reserved.
    """
    compiled = compile_program(
        program,
        target,
        flags=flags,
        timeout_s=timeout_s,
        cache_dir=cache_dir,
        progress=progress,
    )
    return analyse(compiled, program=program)


def compile_many(
    program: Program,
    targets: Iterable[Target | str],
    *,
    flags: Mapping[str, FlagValue] | None = None,
    timeout_s: float = 1800.0,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    num_workers: int | None = None,
) -> dict[str, Schedule | CompileError]:
    """Compile a program for several targets side by side.

    Args:
        program: For as many devices as each target has.
        targets: Targets or their texts.
        flags: See `compile`.
        timeout_s: See `compile`; for each target.
        cache_dir: See `compile`.
        progress: See `compile`; called from several threads.
        num_workers: Compilers at a time; None for one on every two cores.

    Returns:
        By the target's text: the schedule, or the error that the compile ended in.

    Raises:
        ValueError: A target that is none or has another number of devices, or a flag
            that is reserved.
    """
    wanted = [Target.parse(t) if isinstance(t, str) else t for t in targets]

    def one(target: Target) -> Schedule | CompileError:
        try:
            return compile(
                program,
                target,
                flags=flags,
                timeout_s=timeout_s,
                cache_dir=cache_dir,
                progress=progress,
            )
        except CompileError as error:
            return error

    num_workers = num_workers or max(1, (os.cpu_count() or 2) // 2)
    with ThreadPoolExecutor(num_workers) as pool:
        results = list(pool.map(one, wanted))
    return {t.text: result for t, result in zip(wanted, results, strict=True)}
