"""`assert_collectives`: a test that says what a step is to move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, get_args

from profiling._collectives.async_pairs import COLLECTIVES as KINDS
from profiling._collectives.collective import Collective, Moved, Role
from profiling._collectives.totals import Total, table
from profiling._compiling.compiled import FlagValue
from profiling._schedule import Schedule
from profiling._targets.target import Target, count
from spmd._program.summary import bytes_text

if TYPE_CHECKING:
    from spmd._program.program import Program

__all__ = ["Amount", "assert_collectives"]

_ROLES: tuple[str, ...] = get_args(Role)
_LISTED = 20
"""Collectives that a failure lists."""

Wanted: TypeAlias = object
"""A number, or what a number is compared with, such as `pytest.approx`; a pair for at
least and at most; None where any will do."""
Key: TypeAlias = str | tuple[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is expected to move.

    Each is a number; a pair (at least, at most); anything that compares with a number,
    such as `pytest.approx`; or None where any will do, as long as there is some.

    Attributes:
        num_runs: Executions in one step.
        num_collectives: In the module; one in a loop counts once, and so does one that
            the compiler made of several.
        wire_bytes: Bytes that one device sends in a step.
    """

    num_runs: Wanted = None
    num_collectives: Wanted = None
    wire_bytes: Wanted = None

    def __str__(self) -> str:
        asked = (
            (self.num_runs, "run"),
            (self.num_collectives, "collective"),
            (self.wire_bytes, "byte"),
        )
        parts = [_text(wanted, noun) for wanted, noun in asked if wanted is not None]
        return ", ".join(parts) or "some"


@dataclass(frozen=True, slots=True)
class _Line:
    """One expectation, and what there is."""

    label: str
    wanted: str
    found: Total | None
    concerned: tuple[Collective, ...] = field(repr=False)
    is_met: bool

    def text(self, width: int) -> str:
        mark = " " if self.is_met else "!"
        found = "none" if self.found is None else _total_text(self.found)
        return f"{mark} {self.label:<{width}}  expected {self.wanted}; found {found}"


def assert_collectives(
    what: Program | Schedule,
    target: Target | str | None,
    expected: Mapping[Key, int | Amount],
    *,
    others: bool = False,
    flags: Mapping[str, FlagValue] | None = None,
) -> Schedule:
    """Check what a step moves, in a test.

    Args:
        what: A program, which is compiled for the target (or read from the cache), or
            a schedule.
        target: Such as ``"cpu:8"``; None for a schedule's own.
        expected: By role (``"weight gather"``) or kind (``"all-gather"``), alone or in
            a pair with the axes: ``("weight gather", "fsdp")``, ``("all-reduce",
            ("fsdp", "replica"))``. A number counts executions in one step, 0 for none;
            an `Amount` says more.
        others: Let pass what no key of `expected` is about.
        flags: XLA flags to compile with.

    Returns:
        The schedule, for further checks.

    Raises:
        AssertionError: Something else moves; lists what was expected, what was found,
            and the collectives concerned.
        ValueError: No such role, kind or axis, a target that does not fit, or flags
            for a schedule.
        CompileError: The compiler made nothing.

    Example:
        assert_collectives(
            program,
            "cpu:8",
            {("weight gather", "fsdp"): 14, "activation": 0, "scalar": Amount()},
        )
    """
    __tracebackhide__ = True
    schedule = _schedule(what, target, flags)
    keys = {key: _read(key, schedule) for key in expected}
    lines = [_line(keys[key], expected[key], schedule) for key in expected]
    if not others:
        lines += _unexpected(tuple(keys.values()), schedule)
    if not all(line.is_met for line in lines):
        raise AssertionError(_message(lines, schedule))
    return schedule


@dataclass(frozen=True, slots=True)
class _Key:
    """What an expectation is about."""

    what: str
    axes: tuple[str, ...] | None

    def holds(self, collective: Collective, moved: Moved) -> bool:
        own = self.axes is None or set(self.axes) == set(collective.axes)
        return own and self.what in {collective.kind, moved.role}

    def __str__(self) -> str:
        if self.axes is None:
            return self.what
        return f"{self.what} over {', '.join(self.axes) or 'no axes'}"


def _schedule(
    what: Program | Schedule,
    target: Target | str | None,
    flags: Mapping[str, FlagValue] | None,
) -> Schedule:
    wanted = Target.parse(target) if isinstance(target, str) else target
    if isinstance(what, Schedule):
        if flags:
            raise ValueError(
                f"flags do not apply: the schedule of {what.name!r} is compiled "
                f"already; give the program"
            )
        own = what.target
        if wanted is not None and (own is None or own.text != wanted.text):
            is_for = "no target" if own is None else own.text
            raise ValueError(
                f"the schedule of {what.name!r} is for {is_for}, not {wanted.text}; "
                f"give None for its own"
            )
        return what
    if wanted is None:
        raise ValueError(
            "a program is not compiled yet: say for what, such as target='cpu:8'"
        )
    from profiling._compiling.anyway import compile_anyway

    return compile_anyway(what, wanted, flags=flags or {})


def _read(key: Key, schedule: Schedule) -> _Key:
    what, axes = (key, None) if isinstance(key, str) else key
    if what not in _ROLES and what not in KINDS:
        raise ValueError(
            f"expected {key!r}: {what!r} is neither a role ({', '.join(_ROLES)}) nor a "
            f"kind ({', '.join(sorted(KINDS))})"
        )
    if axes is None:
        return _Key(what, None)
    names = (axes,) if isinstance(axes, str) else tuple(axes)
    mesh = schedule.mesh
    known = () if mesh is None else mesh.axis_names
    if unknown := [name for name in names if name not in known]:
        has = f"the mesh has {', '.join(known)}" if known else "there is no mesh"
        raise ValueError(f"expected {key!r}: no axis {unknown[0]!r}; {has}")
    return _Key(what, names)


def _line(key: _Key, expected: int | Amount, schedule: Schedule) -> _Line:
    amount = expected if isinstance(expected, Amount) else Amount(num_runs=expected)
    sums = dict(table(schedule.collectives, lambda c, m: str(key.holds(c, m))))
    found = sums.get(("True",))
    concerned = tuple(
        c for c in schedule.collectives if any(key.holds(c, m) for m in c.moved)
    )
    return _Line(str(key), str(amount), found, concerned, _meets(amount, found))


def _meets(amount: Amount, found: Total | None) -> bool:
    figures = (
        (amount.num_runs, found.num_runs if found else 0),
        (amount.num_collectives, found.num_collectives if found else 0),
        (amount.wire_bytes, found.step_wire_bytes if found else 0),
    )
    asked = [(wanted, value) for wanted, value in figures if wanted is not None]
    if not asked:
        return found is not None
    return all(_fits(wanted, value) for wanted, value in asked)


def _fits(wanted: Wanted, value: int) -> bool:
    if isinstance(wanted, tuple):
        least, most = wanted
        return least <= value <= most
    return bool(value == wanted)


def _unexpected(keys: Sequence[_Key], schedule: Schedule) -> list[_Line]:
    """A line for each role and axes that no key is about."""
    left: dict[_Key, list[Collective]] = {}
    for c in schedule.collectives:
        for moved in c.moved:
            if not any(key.holds(c, moved) for key in keys):
                own = left.setdefault(_Key(moved.role, c.axes), [])
                if c not in own:
                    own.append(c)
    lines = []
    for key, own in left.items():
        sums = dict(table(own, lambda c, m, key=key: str(key.holds(c, m))))
        lines.append(_Line(str(key), "none", sums["True",], tuple(own), False))
    return lines


def _message(lines: Sequence[_Line], schedule: Schedule) -> str:
    where = "" if schedule.target is None else f" on {schedule.target.text}"
    width = max(len(line.label) for line in lines)
    wrong = [line for line in lines if not line.is_met]
    own = dict.fromkeys(c.name for line in wrong for c in line.concerned)
    concerned = [c for c in schedule.collectives if c.name in own]
    concerned.sort(key=lambda c: -c.step_wire_bytes)
    text = [f"{schedule.name}{where} moves something else than expected", ""]
    text += [line.text(width) for line in lines]
    if concerned:
        text += ["", "collectives concerned (bytes a device sends in a step):"]
        text += [_collective_text(c) for c in concerned[:_LISTED]]
    if len(concerned) > _LISTED:
        text.append(f"  and {len(concerned) - _LISTED} more")
    return "\n".join(text)


def _collective_text(collective: Collective) -> str:
    over = ", ".join(collective.axes) or f"groups of {collective.group_size}"
    name = collective.tensor if collective.moved[0].tensor else collective.module
    runs = count(collective.num_runs, "run")
    parts = (
        f"{collective.kind} over {over}: {collective.role}",
        name,
        collective.phase,
        f"{bytes_text(collective.step_wire_bytes)} in {runs}",
        collective.source.rpartition("/")[2],
    )
    return f"  {collective.name}  {', '.join(filter(None, parts))}"


def _total_text(total: Total) -> str:
    return (
        f"{count(total.num_runs, 'run')}, "
        f"{count(total.num_collectives, 'collective')}, "
        f"{total.step_wire_bytes} bytes"
    )


def _text(wanted: Wanted, noun: str) -> str:
    if isinstance(wanted, int):
        return count(wanted, noun)
    if isinstance(wanted, tuple):
        return f"{wanted[0]} to {wanted[1]} {noun}s"
    return f"{wanted} {noun}s"
