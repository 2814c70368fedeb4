"""Which operations belong to one execution of a program, and where steps begin."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from profiling._profile.host import marked_steps
from profiling._profile.trace import OpEvent, Run, Trace

_FEW = 0.2
"""Share of the operations that come equally often, below which they do not count."""
_WHOLE = 0.9
"""Share of the usual operations from which on an execution is not cut off."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Execution:
    """One execution of a program on one device, or on all of a step's.

    Attributes:
        program: Name of the program, with its number.
        start: When its first operation started, in picoseconds.
        end: When its last one ended.
        ops: Its operations by their start.
    """

    program: str
    start: int
    end: int
    ops: tuple[OpEvent, ...]

    def __repr__(self) -> str:
        return f"Execution({self.program!r}, {len(self.ops)} operations)"


def executions(
    ops: Iterable[OpEvent],
    runs: Sequence[Run] = (),
    once: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> tuple[Execution, ...]:
    """Group what one device did by execution.

    Args:
        ops: Of one device.
        runs: What the device's own line marks.
        once: By program, operations that an execution does once.

    Returns:
        Executions by their start. Where neither runs nor numbers tell them apart, one
        starts with the first of the operations that an execution does once.
    """
    groups: dict[tuple[str, int], list[OpEvent]] = {}
    unnumbered: dict[tuple[str, int], list[OpEvent]] = defaultdict(list)
    starts = [run.start for run in runs]
    for op in sorted(ops, key=lambda op: op.start):
        at = bisect_right(starts, op.start) - 1
        if at >= 0 and op.start <= runs[at].end:
            groups.setdefault((runs[at].program, at), []).append(op)
        elif op.run:
            groups.setdefault((op.program, op.run), []).append(op)
        else:
            unnumbered[op.program, at].append(op)  # no run lies between these
    parts = [(program, found) for (program, _), found in groups.items()]
    has_names = any(program for program, _ in parts) or any(p for p, _ in unnumbered)
    for (program, _), found in unnumbered.items():
        if has_names and not program:  # copies, say: what lies between is of others
            parts += [(program, [op]) for op in found]
        else:
            parts += [(program, part) for part in _cut(found, once.get(program, ()))]
    made = [
        Execution(program, part[0].start, max(op.end for op in part), tuple(part))
        for program, part in parts
    ]
    return tuple(sorted(made, key=lambda e: e.start))


def _cut(ops: list[OpEvent], once: Collection[str]) -> list[list[OpEvent]]:
    """Cut where the operation comes again that an execution does first, and once.

    Where it is not known which are done once, these are the ones that come least often;
    but a few may be of a branch that is seldom taken.
    """
    counts = Counter(op.name for op in ops if op.name in once)
    if counts:
        usual = Counter(counts.values()).most_common(1)[0][0]
    else:
        counts = Counter(op.name for op in ops)
        many = Counter(counts.values())
        usual = min(n for n, names in many.items() if names >= _FEW * len(counts))
    first = next(op.name for op in ops if counts.get(op.name) == usual)
    starts = [i for i, op in enumerate(ops) if op.name == first]
    bounds = [0, *starts[1:], len(ops)]
    return [ops[a:b] for a, b in pairwise(bounds) if b > a]


@dataclass(frozen=True, slots=True)
class Window:
    """One step of one device, in picoseconds.

    Attributes:
        start: When it started.
        end: When the next one did, or when the device's last operation ended.
        is_whole: The next one started: what the device waited for is in it.
    """

    start: int
    end: int
    is_whole: bool


def main_program(traces: Sequence[Trace]) -> str:
    """The program that devices spend most time in.

    Args:
        traces: Of all hosts.

    Returns:
        Its name, with its number; empty where nothing ran.
    """
    times: Counter[str] = Counter()
    for trace in traces:
        for op in trace.ops:
            if op.program:
                times[op.program] += op.end - op.start
    return times.most_common(1)[0][0] if times else ""


def is_same(program: str, other: str) -> bool:
    """Whether two programs are one that was compiled again.

    Args:
        program: Name of a program, with its number.
        other: The same.

    Returns:
        True where only their numbers differ.

    Example:
        >>> is_same("jit_step(3)", "jit_step(8)"), is_same("jit_step(3)", "jit_eval(3)")
        (True, False)
    """
    return program.partition("(")[0] == other.partition("(")[0]


def windows(
    found: Sequence[Execution], program: str, per_step: int
) -> tuple[Window, ...]:
    """The steps of one device.

    A step goes from the start of its first execution of the main program to the start
    of the next step's; the last one ends with the device's last operation. Executions
    that were cut off by the start or the end of the capture are left out.

    Args:
        found: Executions of the device.
        program: The main program.
        per_step: Executions of it in one step.

    Returns:
        Steps by their start.
    """
    main = [e for e in found if is_same(e.program, program)]
    if not main:
        return ()
    usual = {
        name: Counter(len(e.ops) for e in main if e.program == name).most_common(1)
        for name in {e.program for e in main}
    }
    whole = [len(e.ops) >= _WHOLE * usual[e.program][0][0] for e in main]
    first = next(i for i, is_whole in enumerate(whole) if is_whole)
    last = len(main) - next(i for i, w in enumerate(reversed(whole)) if w)
    starts = [e.start for e in main[first:last:per_step]]
    if last < len(main):
        end = main[last].start
    else:
        end = max(e.end for e in found if e.start >= starts[-1])
    bounds = [*starts, end]
    steps = [Window(start, end, True) for start, end in pairwise(bounds)]
    if last == len(main):
        steps[-1] = Window(steps[-1].start, steps[-1].end, False)
    return tuple(steps)


def runs_per_step(traces: Sequence[Trace], main: Sequence[int]) -> tuple[int, str]:
    """How often a step runs the main program.

    Args:
        traces: Of all hosts.
        main: Of each trace, how often a device ran it.

    Returns:
        The number, and a note where marks and executions do not fit together.
    """
    for trace, count in zip(traces, main, strict=True):
        marks = trace.device_steps or len(marked_steps(trace.spans))
        if not marks or not count or marks == count:
            continue
        if count % marks == 0:
            return count // marks, ""
        if abs(count - marks) > 1:  # one may be cut off at either end
            return 1, (
                f"{trace.host}: {marks} steps are marked, but the main program ran "
                f"{count} times; a step is taken to be one run of it"
            )
    return 1, ""


def within(
    ops: Sequence[OpEvent], starts: Sequence[int], start: int, end: int
) -> Sequence[OpEvent]:
    """Operations that start in a window.

    Args:
        ops: Of one device, by their start.
        starts: Their starts.
        start: Of the window.
        end: Of the window.

    Returns:
        A slice of them.
    """
    return ops[bisect_left(starts, start) : bisect_left(starts, end)]
