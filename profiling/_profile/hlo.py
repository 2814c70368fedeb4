"""The HLO of a profile's programs, and what the compiler planned for the main one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from profiling._analyse import analyse, num_devices
from profiling._compiling.compiled import Compiled
from profiling._dump import Dump, DumpedProgram
from profiling._hlo.binary import read_binary
from profiling._hlo.module import Module
from profiling._profile.names import OpNames
from profiling._profile.trace import Trace
from profiling._schedule import Schedule
from profiling._targets.target import Target
from spmd._meshes.mesh import Mesh
from spmd._program.program import Program

Given: TypeAlias = Program | Dump | DumpedProgram | Compiled | Schedule | Module | None
"""What a caller may know of the program that ran."""

_ENOUGH = 0.5
"""Share of a run's operations that a module must have to be its."""
_WORTH = 0.002
"""Share of the devices' time from which on a program's HLO is read."""
_SUFFIX = ".hlo_proto.pb"  # as xprof extracts it


@dataclass(frozen=True, slots=True)
class Joined:
    """HLO of a profile.

    Attributes:
        names: By program, what its operations are.
        schedule: Of the main program; None without HLO of it.
        notes: What is missing.
    """

    names: Mapping[str, OpNames]
    schedule: Schedule | None
    notes: tuple[str, ...]


def join(
    traces: Sequence[Trace],
    main: str,
    given: Given,
    *,
    mesh: Mesh | Mapping[str, int] | None,
    target: Target | str | None,
) -> Joined:
    """Find the HLO of what ran.

    Args:
        traces: Of all hosts.
        main: The main program.
        given: What the caller knows of it.
        mesh: Names axes.
        target: Gives estimates; of a CPU run it is known.

    Returns:
        What was found.

    Raises:
        ValueError: What is given is not what ran, or does not fit together.
    """
    notes: list[str] = []
    modules = modules_of(traces, main, notes)
    own = _given_module(given, main)
    if own is not None:
        modules[main] = own
    names = {program: OpNames(module) for program, module in modules.items()}
    _check(traces, main, names.get(main), given)
    if main not in modules:
        notes.append(
            f"no HLO of {main or 'what ran'}: tensors, axes and bytes are not known; "
            f"give what it was compiled from (--program DUMP_DIR, program=...)"
        )
        return Joined(names, None, tuple(notes))
    if isinstance(given, Schedule):
        return Joined(names, given, tuple(notes))
    schedule = _schedule(modules[main], traces, given, mesh, target, notes)
    return Joined(names, schedule, tuple(notes))


def modules_of(
    traces: Sequence[Trace], main: str, notes: list[str]
) -> dict[str, Module]:
    """Read the HLO that a profile has of what ran.

    Args:
        traces: Of all hosts.
        main: The main program.
        notes: What could not be read is added here.

    Returns:
        By program; without those that took next to no time.
    """
    times: Counter[str] = Counter()
    for trace in traces:
        for op in trace.ops:
            times[op.program] += op.end - op.start
    least = _WORTH * sum(times.values())
    found: dict[str, Module] = {}
    for program, time in times.most_common():
        if not program or (time < least and program != main):
            continue
        data = _bytes(traces, program)
        if data is None:
            continue
        try:
            found[program] = read_binary(data, source=f"HLO of {program}")
        except ValueError as error:
            notes.append(str(error))
    return found


def _bytes(traces: Sequence[Trace], program: str) -> bytes | None:
    """HLO out of the profile, else out of a file that was extracted from it."""
    name = program.partition("(")[0]
    for trace in traces:
        if program in trace.modules:
            return trace.modules[program]
        alike = [key for key in trace.modules if key.partition("(")[0] == name]
        if program == name and len(alike) == 1:  # a profile that has no numbers
            return trace.modules[alike[0]]
        file = Path(trace.source).parent / f"{program}{_SUFFIX}"
        if file.is_file():
            return file.read_bytes()
    return None


def _given_module(
    given: Given,
    main: str,
) -> Module | None:
    if isinstance(given, Schedule):
        return given.module
    if isinstance(given, Module):
        return given
    if isinstance(given, Compiled):
        return read_binary(given.hlo, source=f"compiled for {given.target.text}")
    if isinstance(given, Dump):
        name = main.partition("(")[0]
        alike = [p for p in given.programs if p.module_name == name]
        given = max(alike, key=lambda p: p.num_bytes) if alike else given.largest
    if isinstance(given, DumpedProgram):
        return given.scheduled or given.partitioned
    return None


def _check(
    traces: Sequence[Trace], main: str, names: OpNames | None, given: object
) -> None:
    """Refuse a module whose instructions are not those that ran."""
    if given is None or names is None:
        return
    ran = {
        op.name
        for trace in traces
        for op in trace.ops
        if op.program == main and op.is_named
    }
    known = sum(names.has(name) for name in ran)
    if known < _ENOUGH * len(ran):
        few = ", ".join(sorted(n for n in ran if not names.has(n))[:3])
        raise ValueError(
            f"{given!r} is not what ran: of {len(ran)} operations of {main} it has "
            f"{known}, and not {few}; give the program of this very run, or leave "
            f"program out"
        )


def _schedule(
    module: Module,
    traces: Sequence[Trace],
    given: object,
    mesh: Mesh | Mapping[str, int] | None,
    target: Target | str | None,
    notes: list[str],
) -> Schedule:
    program = given if isinstance(given, Program) else None
    if isinstance(given, Compiled):
        return analyse(given, mesh=mesh, target=target)
    known = target or _own_target(module, traces)
    schedule = analyse(module, program=program, mesh=mesh, target=known)
    if known is None:
        chip = next((t.chip for t in traces if t.chip), "")
        ran = f" (it ran on {chip})" if chip else ""
        notes.append(
            f"no target: there is no estimate to compare with; say what it ran "
            f"on{ran}, such as --target h100:1x8"
        )
    if schedule.mesh is None and num_devices(module) > 1:
        notes.append("no mesh: name the axes with --mesh fsdp=4,tensor=2")
    return schedule


def _own_target(module: Module, traces: Sequence[Trace]) -> Target | None:
    if any(trace.kind != "cpu" for trace in traces):
        return None
    number = num_devices(module)
    return Target.parse(f"cpu:{number}") if number > 1 else None
