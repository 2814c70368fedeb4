"""Operations of CPU devices, which a profile has on the host's threads.

XLA's CPU client runs each device's program in tasks of one thread pool. An operation is
an event with `hlo_op`; where it is not done when its event ends (a matmul that other
threads work on), an event ``end: NAME`` that consumes what it produced says when it
is. jax's newer client names device and run in each event. torch_xla's does not: there
an execution is the tasks that hand on to each other, and its devices get numbers in the
order in which they start. A task hands on where it ends what another produced, or
where it posts one that does operations which its own execution has not done yet; what
it wakes up besides is of another device.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Literal, TypeAlias

from profiling._profile.trace import OpEvent
from profiling._profile.xplane import Event, Line, Value

Role: TypeAlias = Literal[
    "start", "stop", "posted", "rendezvous", "end", "noise", "other"
]
_ROLES: dict[str, Role] = {
    "ThreadpoolListener::StartRegion": "start",
    "ThreadpoolListener::StopRegion": "stop",
    "ThreadpoolListener::Record": "posted",
    "Rendezvous": "rendezvous",
}
_NOISE = ("Wait", "Rendezvous callback", "$")
_DEVICES = re.compile(r"global_devices=\[([\d,\s]*)\]")

Task = tuple[int, int]
"""Number of a thread, and of a stretch of it between two tasks' starts or ends."""


class CpuOps:
    """Collects the operations of a host's threads, line by line."""

    def __init__(self) -> None:
        self._ops: list[tuple[OpEvent, Task, Value | None]] = []
        self._ends: dict[Value, tuple[Task, int]] = {}
        self._devices: set[int] = set()
        self._joined: dict[Task, Task] = {}
        self._posted: list[tuple[Event, Task]] = []
        self._begun: list[tuple[Event, Task]] = []
        self._named = True
        self._roles: dict[str, Role] = {}
        self._programs: dict[tuple[Value, Value], str] = {}

    def add(self, number: int, line: Line) -> None:
        """Read a thread.

        Args:
            number: Of the thread.
            line: Its events.
        """
        at = 0
        roles = [(self._role(event.name), event) for event in line.events]
        wanted = [entry for entry in roles if entry[0] != "noise"]
        wanted.sort(key=lambda e: (e[1].start_ps, -e[1].duration_ps))
        for role, event in wanted:
            if role == "start" or role == "stop":
                at += 1
                if role == "start":
                    self._begun.append((event, (number, at)))
            elif role == "posted":
                self._posted.append((event, (number, at)))
            elif role == "end":
                consumed = event.stat("_c")
                if consumed is not None:
                    self._ends[consumed] = ((number, at), event.end_ps)
            elif role == "rendezvous":
                self._rendezvous(event)
            else:
                stats = event.stats()
                if "hlo_op" in stats:
                    self._op(event, stats, (number, at))

    def _role(self, name: str) -> Role:
        role = self._roles.get(name)
        if role is None:
            role = self._roles[name] = _role_of(name)
        return role

    def found(self) -> tuple[tuple[OpEvent, ...], bool]:
        """All operations, each with its device and its run.

        Returns:
            Operations by their start, and whether devices are told apart.
        """
        for op, task, produced in self._ops:
            done = None if produced is None else self._ends.get(produced)
            if done is not None:
                op.end = max(op.end, done[1])
                self._join(task, done[0])
        self._ops.sort(key=lambda entry: entry[0].start)
        told = True
        if not self._named:
            self._follow()
            told = self._number([(op, self._root(task)) for op, task, _ in self._ops])
        return tuple(op for op, _, _ in self._ops), told

    def _op(self, event: Event, stats: dict[str, Value], task: Task) -> None:
        device = stats.get("device_ordinal")
        if device is None:
            self._named = False
        key = stats.get("hlo_module", ""), stats.get("program_id", 0)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = f"{key[0]}({key[1]})"
        op = OpEvent(
            str(stats["hlo_op"]),
            program,
            int(device or 0),
            event.start_ps,
            event.end_ps,
            int(stats.get("run_id") or 0),
            line=task[0],
        )
        self._ops.append((op, task, stats.get("_p")))

    def _rendezvous(self, event: Event) -> None:
        match = _DEVICES.search(str(event.stats().get("name", "")))
        if match:
            self._devices.update(int(n) for n in match[1].split(",") if n.strip())

    def _root(self, task: Task) -> Task:
        joined = self._joined
        while (above := joined.get(task, task)) != task:
            joined[task] = joined.get(above, above)
            task = above
        return task

    def _join(self, one: Task, other: Task) -> None:
        one, other = self._root(one), self._root(other)
        if one != other:
            self._joined[other] = one

    def _follow(self) -> None:
        """Join tasks to those that they post."""
        names: dict[Task, set[str]] = defaultdict(set)
        working = set()
        for op, task, _ in self._ops:
            names[self._root(task)].add(op.name)
            working.add(task)
        begun = {e.stat("_c"): t for e, t in self._begun if t in working}
        for event, task in sorted(self._posted, key=lambda entry: entry[0].start_ps):
            if task not in working:
                continue
            next_task = begun.get(event.stat("_p"))
            if next_task is None:
                continue
            one, other = self._root(task), self._root(next_task)
            if one != other and not names[one] & names[other]:
                self._join(one, other)
                names[one] |= names.pop(other)

    def _number(self, found: Sequence[tuple[OpEvent, Task]]) -> bool:
        """Give each execution a device and a run; False where they do not add up.

        A program with a collective starts on all devices before it starts again on
        any, so that executions in the order of their starts come in rounds. Those that
        the start or the end of the capture cut off are left out.
        """
        count = max(1, len(self._devices))
        by_program: dict[str, dict[Task, list[OpEvent]]] = {}
        for op, root in found:
            by_program.setdefault(op.program, {}).setdefault(root, []).append(op)
        told = True
        kept: set[int] = set()
        for executions in by_program.values():
            parts = _whole(list(executions.values()), count)
            if parts is None:
                told = False
                parts = _dealt([op for ops in executions.values() for op in ops], count)
            for at, ops in enumerate(parts):
                kept.update(map(id, ops))
                for op in ops:
                    op.device, op.run = at % count, at // count + 1
        self._ops = [entry for entry in self._ops if id(entry[0]) in kept]
        return told


def is_noise(name: str) -> bool:
    """Whether an event says nothing about operations.

    Args:
        name: Of the event.

    Returns:
        True for waiting, and for lines of Python.
    """
    return name.startswith(_NOISE)


def _role_of(name: str) -> Role:
    if is_noise(name):
        return "noise"
    return _ROLES.get(name, "end" if name.startswith("end: ") else "other")


def _whole(executions: list[list[OpEvent]], count: int) -> list[list[OpEvent]] | None:
    """Executions that did what most did, in whole rounds over the devices.

    None where others lie between them, or where rounds cannot be told. Of a round that
    was cut off some executions may be whole; they go with it. Which these are is told
    by time: executions of one round wait for each other, so they overlap.
    """
    shapes = [frozenset(Counter(op.name for op in ops).items()) for ops in executions]
    usual = Counter(shapes).most_common(1)[0][0]
    whole, cut = [], []  # by their starts, as executions are
    for ops, shape in zip(executions, shapes, strict=True):
        (whole if shape == usual else cut).append(ops)
    rest = len(whole) % count
    if len(whole) < count or (rest and not cut):
        return None
    spans = [(ops[0].start, max(op.end for op in ops)) for ops in whole]
    best, choice = 0, None
    for first in range(rest + 1):
        last = len(whole) - rest + first
        start, end = spans[first][0], spans[last - 1][0]
        if any(start < ops[0].start < end for ops in cut):
            continue
        rounds = [spans[i : i + count] for i in range(first, last, count)]
        shared = [min(b for _, b in r) - max(a for a, _ in r) for r in rounds]
        if min(shared) > 0 and sum(shared) > best:
            best, choice = sum(shared), whole[first:last]
    return choice


def _dealt(ops: list[OpEvent], count: int) -> list[list[OpEvent]]:
    """Operations shared out: the nth time that one starts is device n's.

    What a device did is then not to be relied on; sums over all devices are.
    """
    ops.sort(key=lambda op: op.start)
    seen: Counter[str] = Counter()
    shares: dict[int, list[OpEvent]] = {}
    totals = Counter(op.name for op in ops)
    rounds = max(1, min(totals.values()) // count)
    for op in ops:
        each = max(1, totals[op.name] // rounds)  # of one step, all devices
        turn, place = divmod(seen[op.name], each)
        seen[op.name] += 1
        shares.setdefault(min(turn, rounds - 1) * count + place % count, []).append(op)
    return [shares[n] for n in sorted(shares)]
