"""Whether all processes are about to run the same program.

Processes with different programs would wait for each other in a collective for ever.
So before the first step they compare notes through jax.distributed's key-value store,
which needs no collective.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import jax

from spmd._pjrt import processes as pjrt_processes
from spmd._program.program import Program

Notes = Sequence[tuple[str, str]]
"""Pairs of what something is, and what it is here; the order is that of comparing."""

_rounds = itertools.count()


def notes(program: Program, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What must be the same everywhere.

    Args:
        program: The program.
        options: Compile options.

    Returns:
        Inputs first, so that a mismatch names an input where it can.
    """
    found = [("mesh", f"{program.mesh!r}")]
    found += [(f"input {v.name!r}", _about(v)) for v in program.inputs]
    found += [(f"output {v.name!r}", _about(v)) for v in program.outputs]
    found += [(f"compile option {k!r}", repr(v)) for k, v in sorted(options.items())]
    found.append(("the version of jax", jax.__version__))
    found.append(("the computation itself (fingerprint)", program.fingerprint[:16]))
    return found


def _about(value: Any) -> str:
    pair = value.donated_to if value.updates is None else value.updates
    return f"{value.dtype}{list(value.shape)}, spec {value.spec}, paired with {pair}"


def check_same(ours: Notes, *, timeout_s: float) -> None:
    """Compare this process's notes with those of all others.

    Every process must call this. Process 0 reads them all and tells the verdict. With
    one process it does nothing.

    Args:
        ours: The notes of this process.
        timeout_s: How long the slowest process may take to arrive here.

    Raises:
        RuntimeError: Several processes without jax.distributed.
        TimeoutError: A process did not arrive in time; names it.
        ValueError: A process has something else; names it and the first difference.
    """
    count, me = jax.process_count(), jax.process_index()
    if count == 1:
        return
    key = f"spmd/same_program/{next(_rounds)}"
    if me:
        pjrt_processes.publish(f"{key}/{me}", json.dumps(list(ours)))
        # Later than process 0, so that its verdict on who is late comes in time.
        verdict = pjrt_processes.read(f"{key}/verdict", timeout_s=timeout_s + 10)
        if verdict is None:
            raise TimeoutError(_missing(0, timeout_s))
    else:
        verdict = _verdict(key, ours, count, timeout_s)
        pjrt_processes.publish(f"{key}/verdict", verdict)
    kind, _, text = verdict.partition(" ")
    if kind == "late":
        raise TimeoutError(text)
    if kind == "differs":
        raise ValueError(text)


def _verdict(key: str, ours: Notes, count: int, timeout_s: float) -> str:
    end_s = time.monotonic() + timeout_s
    for process in range(1, count):
        left_s = max(1.0, end_s - time.monotonic())
        text = pjrt_processes.read(f"{key}/{process}", timeout_s=left_s)
        if text is None:
            return f"late {_missing(process, timeout_s)}"
        difference = first_difference(ours, [(a, b) for a, b in json.loads(text)])
        if difference:
            return (
                f"differs process {process} is about to run another program than "
                f"process 0: {difference}. Start every process with the same script, "
                f"file and versions"
            )
    return "same"


def _missing(process: int, timeout_s: float) -> str:
    return (
        f"process {process} did not come to its first step within {timeout_s:g} s; "
        f"look at its output for an error"
    )


def first_difference(ours: Notes, theirs: Notes) -> str | None:
    """Find where two processes differ.

    Args:
        ours: Notes of process 0.
        theirs: Notes of another.

    Returns:
        The difference in words; None where there is none.

    Example:
        >>> first_difference([("input 'w'", "float32[4]")], [("input 'w'", "int8[4]")])
        "input 'w' is int8[4] there and float32[4] on process 0"
    """
    for mine, other in zip_longest(ours, theirs):
        if mine == other:
            continue
        if mine is None or other is None or mine[0] != other[0]:
            here = "nothing more" if mine is None else f"{mine[0]}: {mine[1]}"
            there = "nothing more" if other is None else f"{other[0]}: {other[1]}"
            return f"it has {there} where process 0 has {here}"
        return f"{mine[0]} is {other[1]} there and {mine[1]} on process 0"
    return None
