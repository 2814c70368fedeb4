"""`Diff`: what two steps move, hold and wait for otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from profiling._collectives.collective import Collective, Moved
from profiling._collectives.totals import Total, table
from profiling._diff.held import Held, held
from profiling._diff.side import FIGURES, Side
from profiling._findings.why import pattern_of
from profiling._hlo.device_groups import DeviceGroups
from profiling._targets.target import count

if TYPE_CHECKING:
    from profiling._diff.read import Step
    from profiling._targets.target import Target

What: TypeAlias = Literal[
    "added",
    "removed",
    "moved",
    "other kind",
    "grew",
    "shrank",
    "more runs",
    "fewer runs",
    "waits longer",
    "waits less",
]

_ROOM, _FIRST = 40, 4  # characters of groups, and devices of the first
_LEAST_S, _LEAST_SHARE = 1e-6, 0.01  # a smaller difference of an estimate says nothing
FORMAT = 1
"""Of `Diff.as_json`; raised when a field goes or comes to mean another thing."""


@dataclass(frozen=True, slots=True)
class Group:
    """What collectives have in common that belong together in two steps.

    Attributes:
        role: What the tensors are to the step.
        axes: See `over`.
        kind: Opcode, such as ``all-gather``.
        pattern: Name of the tensor, or the module where there is no tensor, with ``*``
            for numbers of layers; empty where neither is known.
    """

    role: str
    axes: str
    kind: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Change:
    """Collectives that are otherwise.

    Attributes:
        what: ``moved``: over other axes; ``other kind``: over the same axes by another
            opcode; ``grew`` and ``shrank``: by bytes; ``runs``: the same bytes, but
            joined otherwise by the compiler; ``waits``: only the exposed time.
        group: In A; in B where it was added.
        to: In B; in A where it was removed.
        before: Sums in A; None where it was added.
        after: Sums in B; None where it was removed.
    """

    what: What
    group: Group
    to: Group
    before: Total | None
    after: Total | None

    @property
    def more_bytes(self) -> int:
        """Bytes by which a device sends more in a step; negative where it is less."""
        return _bytes(self.after) - _bytes(self.before)


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """What two steps do otherwise.

    Attributes:
        before: The first step, A.
        after: The second step, B.
        changes: Collectives, largest difference in bytes first.
        held: Inputs, largest difference in bytes first.
        notes: What makes the two hard to compare.
    """

    before: Side
    after: Side
    changes: tuple[Change, ...]
    held: tuple[Held, ...]
    notes: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Nothing moves, is held or is measured otherwise."""
        same = self.before.figures == self.after.figures
        return same and not self.changes and not self.held

    def as_json(self, *, failed: Sequence[str] = ()) -> dict[str, Any]:
        """All of it as data; `profiling/schema/diff.json` describes the form.

        Args:
            failed: What a check found, if there was one.

        Returns:
            Dicts, lists, strings, numbers, bools and None.
        """
        sides = {"a": self.before, "b": self.after}
        return {
            "format": FORMAT,
            **{
                key: {
                    "name": side.name,
                    "target": side.target,
                    "mesh": side.mesh,
                    "flags": dict(side.flags),
                    "figures": {name: side.figures[name] for name in FIGURES},
                }
                for key, side in sides.items()
            },
            "changes": [
                {**asdict(c), "more_bytes": c.more_bytes} for c in self.changes
            ],
            "held": [
                {**asdict(h), "before": list(h.before), "after": list(h.after)}
                for h in self.held
            ],
            "notes": list(self.notes),
            "failed": list(failed),
        }

    def __repr__(self) -> str:
        return (
            f"Diff({self.before!r} -> {self.after!r}: {len(self.changes)} changes, "
            f"{len(self.held)} inputs)"
        )


def diff(before: Step, after: Step, *, target: Target | str | None = None) -> Diff:
    """Compare two steps.

    Args:
        before: The first: a program, a schedule, a dump, a path of one of these or of
            what ``spmd inspect --json`` wrote; or a `Side`, which says more of how it
            is to be read or compiled.
        after: The second.
        target: What to compile programs for, such as ``"h100:2x8"``; of dumps: what
            they ran on. Default for a program: what the other step is for.

    Returns:
        What the second does otherwise.

    Raises:
        OSError: See `side`.
        TypeError: See `side`.
        ValueError: See `side`.
        CompileError: See `side`.
    """
    if not isinstance(before, Side) or not isinstance(after, Side):
        from profiling._diff.read import both_sides

        before, after = both_sides(before, after, target)
    changes = sorted(_changes(before, after), key=_size)
    inputs = held(before.tensors, after.tensors)
    notes = tuple(_notes(before, after))
    return Diff(before, after, tuple(changes), inputs, notes)


def over(collective: Collective) -> str:
    """What a collective runs over, the same text for the same devices.

    Args:
        collective: The collective.

    Returns:
        Its axes joined by commas; where it has none its groups, in order, of which
        there may be too many to say more than how many and the first.
    """
    return ", ".join(collective.axes) or _groups_text(collective.groups)


@cache
def _groups_text(text: str) -> str:
    try:
        groups = sorted(tuple(sorted(g)) for g in DeviceGroups.parse(text).groups)
    except ValueError:
        return text
    parts = ["{" + ",".join(map(str, group)) + "}" for group in groups]
    whole = "{" + ",".join(parts) + "}"
    if not groups or len(whole) <= _ROOM:
        return whole if groups else "all devices"
    size, first = len(groups[0]), ",".join(map(str, groups[0][:_FIRST]))
    more = ",..." if size > _FIRST else ""
    return f"{count(len(groups), 'group')} of {size}, first {{{first}{more}}}"


def _pattern(_: Collective, moved: Moved) -> str:
    return pattern_of(moved.tensor or moved.module)


def _sums(side: Side) -> dict[Group, Total]:
    keys = (
        lambda _, moved: moved.role,
        lambda collective, _: over(collective),
        lambda collective, _: collective.kind,
        _pattern,
    )
    return {Group(*key): total for key, total in table(side.collectives, *keys)}


def _changes(before: Side, after: Side) -> Iterator[Change]:
    old, new = _sums(before), _sums(after)
    for group in old.keys() & new.keys():
        if what := _what(old[group], new[group]):
            yield Change(what, group, group, old[group], new[group])
    gone = [g for g in old if g not in new]
    come = [g for g in new if g not in old]
    pairs = _pairs(gone, come)
    for a, b in pairs.items():
        yield Change(
            "moved" if a.axes != b.axes else "other kind", a, b, old[a], new[b]
        )
    for group in gone:
        if group not in pairs:
            yield Change("removed", group, group, old[group], None)
    for group in come:
        if group not in pairs.values():
            yield Change("added", group, group, None, new[group])


def _what(old: Total, new: Total) -> What | None:
    """How the collectives of one group differ."""
    if old.step_wire_bytes != new.step_wire_bytes:
        return "grew" if new.step_wire_bytes > old.step_wire_bytes else "shrank"
    if old.num_runs != new.num_runs:
        return "more runs" if new.num_runs > old.num_runs else "fewer runs"
    if old.exposed_s is None or new.exposed_s is None:
        return None
    more = new.exposed_s - old.exposed_s
    least = max(_LEAST_S, _LEAST_SHARE * max(old.exposed_s, new.exposed_s))
    if abs(more) < least:
        return None
    return "waits longer" if more > 0 else "waits less"


def _pairs(gone: Sequence[Group], come: Sequence[Group]) -> dict[Group, Group]:
    """Which group became which: the same role and tensor, most alike first."""
    pairs: dict[Group, Group] = {}
    alike: tuple[Callable[[Group], tuple[str, ...]], ...] = (
        lambda g: (g.role, g.pattern, g.kind),
        lambda g: (g.role, g.pattern, g.axes),
        lambda g: (g.role, g.pattern),
    )
    for key in alike:
        left = [g for g in come if g.pattern and g not in pairs.values()]
        for a in gone:
            b = next((g for g in left if key(g) == key(a)), None)
            if a not in pairs and b is not None:
                pairs[a] = b
                left.remove(b)
    return pairs


def _bytes(total: Total | None) -> int:
    return 0 if total is None else total.step_wire_bytes


def _size(change: Change) -> tuple[object, ...]:
    whole = _bytes(change.before) + _bytes(change.after)
    group = change.group
    names = (group.role, group.axes, group.kind, group.pattern)
    return -abs(change.more_bytes), -whole, names


def _notes(before: Side, after: Side) -> Iterator[str]:
    for what in ("target", "mesh"):
        a, b = getattr(before, what), getattr(after, what)
        if a != b:
            yield f"another {what}: A {a or 'not known'}, B {b or 'not known'}"
    names = sorted(before.flags.keys() | after.flags.keys())
    other = [
        f"{n} (A {_flag(before, n)}, B {_flag(after, n)})"
        for n in names
        if _flag(before, n) != _flag(after, n)
    ]
    if other:
        yield f"other flags: {', '.join(other)}"
    for name, side in (("A", before), ("B", after)):
        if side.figures["exposed_s"] is None:
            yield f"{name} has no times: say what it runs on, with --target"


def _flag(side: Side, name: str) -> str:
    value = side.flags.get(name)
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)
