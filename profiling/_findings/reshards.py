"""Values that two annotations split in different ways, and what moves between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from profiling._collectives.collective import Collective
from profiling._findings.case import Case
from profiling._findings.finding import Change, Finding, Fix
from profiling._findings.sums import cost_of
from profiling._findings.why import annotated_name, over, spec_code
from profiling._step.ops import StepOp
from spmd._meshes.sharding import HloSharding, from_hlo
from spmd._meshes.spec import Spec, SpecEntry, entry_axes, shard_shape, spec_axes

_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Turn:
    """A value that is annotated twice.

    Attributes:
        first: What the first annotation is of: an annotation, or an input.
        second: The second annotation.
        given: Spec of the first.
        wanted: Spec of the second.
        between: What is computed in between, element by element.
    """

    first: StepOp
    second: StepOp
    given: Spec
    wanted: Spec
    between: tuple[StepOp, ...]


def reshards(case: Case) -> list[Finding]:
    """Find pairs of annotations between which something moves.

    Args:
        case: The step.

    Returns:
        One finding for each pair.
    """
    found = []
    for turn in turns(case):
        own = _collectives(case, turn)
        if own:
            found.append(_finding(case, turn, own))
    return found


def turns(case: Case) -> Iterator[Turn]:
    """Pairs of annotations of one value that differ.

    Args:
        case: The step.

    Yields:
        The pairs, in order.
    """
    for op in case.annotations:
        if op.scope.phase == "update":
            continue
        wanted = spec_of(case, op)
        first, between = _before(op)
        given = None if first is None else spec_of(case, first)
        if first is None or given is None or wanted is None or given == wanted:
            continue
        if any(
            set(entry_axes(a)) - set(entry_axes(b))
            for a, b in zip(given, wanted, strict=True)
        ):
            yield Turn(first, op, given, wanted, between)


def spec_of(case: Case, op: StepOp) -> Spec | None:
    """What an annotation or an input says.

    Args:
        case: The step.
        op: An annotation or an argument.

    Returns:
        Its spec; None where it says none of this mesh.
    """
    if op.name == "argument":
        value = case.program.inputs[op.number]
        return value.spec if value.role == "input" else None
    try:
        sharding = HloSharding.parse(op.sharding)
        return from_hlo(sharding, case.mesh, ndim=len(op.shape))
    except ValueError:
        return None


def _before(op: StepOp) -> tuple[StepOp | None, tuple[StepOp, ...]]:
    """The annotation or input before this one, and what is in between."""
    between: list[StepOp] = []
    at = op.operands[0]
    while not at.sharding and at.name != "argument":
        same = [o for o in at.operands if o.shape == op.shape]
        if at.is_dot or not same:
            return None, ()
        between.append(at)
        at = same[0]
    return at, tuple(reversed(between))


def _collectives(case: Case, turn: Turn) -> list[Collective]:
    """What moves pieces of the first annotation's size over the axes of both.

    The CPU's compiler moves 16 bits as 32.
    """
    axes = {*spec_axes(turn.given), *spec_axes(turn.wanted)}
    phases = {turn.second.scope.phase, ""}
    piece = math.prod(shard_shape(turn.second.shape, case.mesh, turn.given))
    own = _BYTES.get(turn.second.dtype, 4)
    sizes = {piece * own, piece * max(own, 4)}
    return [
        c
        for c in case.moving
        if c.kind in _CUTTING
        and set(c.axes) <= axes
        and c.phase in phases
        and any(m.operand_bytes in sizes for m in c.moved)
    ]


_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i64": 8, "i32": 4}
_CUTTING = ("all-gather", "all-to-all", "collective-permute")


def _finding(case: Case, turn: Turn, own: list[Collective]) -> Finding:
    gathered = [c for c in own if c.kind == "all-gather"]
    bytes_of = sum(c.step_wire_bytes for c in gathered)
    much = bytes_of >= _SHARE * max(1, case.schedule.wire_bytes)
    where = turn.second.source or turn.second.op_name
    what = "cut anew" if not gathered else "gathered whole and cut anew"
    why = [
        f"{_name(case, turn.first)} is split {spec_code(turn.given)}",
        f"the annotation at {where} splits it {spec_code(turn.wanted)}",
    ]
    middle = between(turn.given, turn.wanted)
    if gathered:
        why.append(
            f"the partitioner has no direct way from one to the other, so it gathers "
            f"over {over(gathered[0].axes)}"
        )
    return Finding(
        kind="reshard-between-annotations",
        severity="problem" if much and middle else "note",
        where=where,
        what=f"{list(turn.second.shape)} is {what} between two annotations",
        why=tuple(why),
        wanted=not gathered,
        fix=None if middle is None or not gathered else _fix(turn, middle),
        **cost_of(own),
    )


def _name(case: Case, op: StepOp) -> str:
    if op.name == "argument":
        return case.program.inputs[op.number].name
    return f"the value annotated at {op.source}" if op.source else "a value"


def between(given: Spec, wanted: Spec) -> Spec | None:
    """A spec on the way from one to another that takes two cheap moves.

    Args:
        given: The first.
        wanted: The second.

    Returns:
        The first without the axes that the second has nowhere, which a small gather
        gives up; the rest can then change dims by all-to-all. None where that is one of
        the two.

    Example:
        >>> between((("b", "a"), None), (None, "b"))
        ('b', None)
    """
    kept = set(spec_axes(wanted))
    found = tuple(_entry(a for a in entry_axes(e) if a in kept) for e in given)
    return None if found in (given, wanted) or not spec_axes(found) else found


def _entry(axes: Iterator[str]) -> SpecEntry:
    found = tuple(axes)
    return found if len(found) > 1 else found[0] if found else None


def _fix(turn: Turn, middle: Spec) -> Fix:
    name = annotated_name(turn.second)
    return Fix(
        text=f"go by way of {spec_code(middle)}",
        code=f"{name} = spmd.mark_sharding({name} * 1, mesh, {spec_code(middle)}) * 1",
        place=f"before the annotation at {turn.second.source}",
        change=Change(before=((turn.second.number, middle),)),
    )
