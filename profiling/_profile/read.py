"""`read_profile`: from the files of a profile to what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from profiling._profile.files import profile_files
from profiling._profile.hlo import Given, Joined, join
from profiling._profile.host import marked_steps
from profiling._profile.measure import Look, Measured, Part, by_device, measure
from profiling._profile.names import OpInfo, OpNames
from profiling._profile.profile import Profile, ProfiledHost, ProfiledStep, Spent
from profiling._profile.runs import (
    Execution,
    is_same,
    main_program,
    runs_per_step,
)
from profiling._profile.space import read_trace
from profiling._profile.tables import (
    collectives_of,
    drawn_part,
    events_of,
    host_events_of,
    host_times_of,
    op_classes_of,
    ops_of,
    with_rates,
)
from profiling._profile.trace import OpEvent, Trace
from profiling._profile.verdict import verdict
from profiling._targets.target import Target
from spmd._meshes.mesh import Mesh
from spmd._program.program import Program

_STRAGGLES = 0.05
_PS = 1e-12


def read_profile(
    path: str | Path,
    *,
    program: Given = None,
    mesh: Mesh | Mapping[str, int] | None = None,
    target: Target | str | None = None,
    xprof: bool = False,
) -> Profile:
    """Read what a run did, from a profile of CPU, GPU or TPU devices.

    Args:
        path: ``*.xplane.pb``; the folder of a session, whose files are those of several
            hosts; or a folder above some sessions, of which the newest is taken.
        program: What was compiled: gives tensors, roles and axes. Default: what the
            profile says of itself, which has no names of a traced step's tensors.
        mesh: Names the axes that collectives run over; default the program's.
        target: What it ran on, or its text: gives the estimate to compare with. Of a
            CPU run that is known.
        xprof: Have xprof count what each operation computes and moves, where it is
            installed. It makes such a table of GPUs and TPUs; of CPUs where
            `capture` recorded them, with the counts that that wrote.

    Returns:
        Steps, operations, collectives, and the verdict.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Damaged, no profile, one in which no program ran, a program, mesh
            or target that does not fit it, or an xprof that is missing or fails.
    """
    path = Path(path)
    files, notes = profile_files(path)
    traces = [read_trace(file) for file in files]
    main = main_program(traces)
    if not main and not any(trace.ops for trace in traces):
        raise ValueError(_nothing(path, traces))
    joined = _joined(traces, main, program, mesh, target)
    once = {program: names.once for program, names in joined.names.items()}
    devices = [(trace, by_device(trace, once)) for trace in traces]
    per_step, note = runs_per_step(traces, [_runs(d, main) for _, d in devices])
    measured = measure(devices, main, per_step, _looker(joined.names))
    notes = (*notes, *(n for t in traces for n in _notes_of(t)), *joined.notes)
    again = {op.program for t in traces for op in t.ops if is_same(op.program, main)}
    if len(again) > 1:
        note = (
            f"{main.partition('(')[0]} ran as {len(again)} programs "
            f"({', '.join(sorted(again))}): it was compiled again; estimates are of "
            f"{main}"
        )
    if note:
        notes = (*notes, note)
    found = _profile(path, main, traces, measured, joined, notes)
    return with_rates(found, files) if xprof else found


def _notes_of(trace: Trace) -> tuple[str, ...]:
    if trace.ops:
        return trace.notes
    return (
        *trace.notes,
        f"{trace.host} recorded no work of its devices: it is left out",
    )


def _joined(
    traces: Sequence[Trace],
    main: str,
    given: Given,
    mesh: Mesh | Mapping[str, int] | None,
    target: Target | str | None,
) -> Joined:
    """Join with what is given, else with a program that was saved beside the profile.

    That one may be of another step of the run: then the profile is read without it.
    """
    if given is None:
        folder = Path(traces[0].source).parent
        for file in sorted(folder.glob("*.spmd")):
            with suppress(OSError, ValueError):
                program = Program.load(file)
                return join(traces, main, program, mesh=mesh, target=target)
    return join(traces, main, given, mesh=mesh, target=target)


def _runs(devices: Mapping[int, Sequence[Execution]], main: str) -> int:
    counts = Counter(
        sum(is_same(e.program, main) for e in executions)
        for executions in devices.values()
    )
    return counts.most_common(1)[0][0] if counts else 0


def _looker(names: Mapping[str, OpNames]) -> Look:
    unknown = OpNames(None)

    def look(op: OpEvent) -> OpInfo:
        return names.get(op.program, unknown)(op.name, op.category)

    return look


def _nothing(path: Path, traces: Iterable[Trace]) -> str:
    hosts = ", ".join(trace.host for trace in traces)
    return (
        f"{path}: no program ran on any device of {hosts} while this was captured; "
        f"capture whole steps, wait for their results before the capture ends, and of "
        f"CPU devices with a host_tracer_level of 1 or more"
    )


def _profile(
    path: Path,
    main: str,
    traces: Sequence[Trace],
    measured: Measured,
    joined: Joined,
    notes: Sequence[str],
) -> Profile:
    steps = _steps(traces, measured)
    spent = _mean([step.spent for step in steps if step.is_counted])
    host_times = host_times_of(measured, len(traces))
    ops = ops_of(measured)
    schedule = joined.schedule
    part = drawn_part(measured.parts)
    trace = next(t for t in traces if t.host == part.host)
    return Profile(
        source=str(path),
        device_kind=next(t.kind for t in traces if t.ops),
        chip=next((t.chip for t in traces if t.chip), ""),
        program=main,
        hosts=_hosts(traces, measured),
        steps=steps,
        spent=spent,
        op_classes=op_classes_of(ops, measured, main, joined),
        ops=ops,
        collectives=collectives_of(measured, main, schedule),
        host_times=host_times,
        verdict=verdict(spent, host_times),
        schedule=schedule,
        events=events_of(part, trace, _looker(joined.names)),
        host_events=host_events_of(part, trace),
        event_device=(part.host, part.device, steps[part.number].number),
        notes=tuple(dict.fromkeys(notes)),
    )


def _spent(part: Part) -> Spent:
    data = part.idle.get("data", 0)
    return Spent(
        (part.end - part.start) * _PS,
        part.compute * _PS,
        part.exposed * _PS,
        part.gap * _PS,
        data * _PS,
        (sum(part.idle.values()) - data) * _PS,
    )


_FIELDS = ("step_s", "compute_s", "exposed_s", "gap_s", "input_s", "host_s")


def _mean(found: Sequence[Spent]) -> Spent:
    return Spent(*(sum(getattr(s, f) for s in found) / len(found) for f in _FIELDS))


def _steps(traces: Sequence[Trace], measured: Measured) -> tuple[ProfiledStep, ...]:
    numbers = next((m for t in traces if (m := marked_steps(t.spans))), ())
    found = []
    every = [*measured.parts, *measured.tails]
    count = max(p.number for p in every) + 1
    for i in range(count):
        parts = [p for p in every if p.number == i]
        hosts = dict.fromkeys(p.host for p in parts)
        by_host = {
            host: _mean([_spent(p) for p in parts if p.host == host]).step_s
            for host in hosts
        }
        fits = len(numbers) == count
        number = numbers[i].step if fits else i
        found.append(
            ProfiledStep(
                number or 0,
                _mean([_spent(p) for p in parts]),
                by_host,
                i < measured.num_steps,
            )
        )
    return tuple(found)


def _hosts(traces: Sequence[Trace], measured: Measured) -> tuple[ProfiledHost, ...]:
    spent = {
        trace.host: _mean([_spent(p) for p in measured.parts if p.host == trace.host])
        for trace in traces
        if any(p.host == trace.host for p in measured.parts)
    }
    own = {host: s.step_s - s.exposed_s for host, s in spent.items()}
    usual = median(own.values())
    return tuple(
        ProfiledHost(
            trace.host,
            len(trace.devices),
            spent[trace.host],
            len(spent) > 1
            and own[trace.host] - usual >= _STRAGGLES * spent[trace.host].step_s,
        )
        for trace in traces
        if trace.host in spent
    )
