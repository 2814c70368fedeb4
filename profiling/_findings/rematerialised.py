"""What the partitioner made whole on every device because it knew no other way."""

from __future__ import annotations

import math
import re
from typing import Any

from profiling._collectives.collective import Collective
from profiling._findings.case import Case
from profiling._findings.finding import Change, Finding, Fix
from profiling._findings.reshards import between
from profiling._findings.sums import cost_of
from profiling._findings.why import spec_code
from profiling._hlo.op_name import parse_op_name
from profiling._hlo.shape import Shape
from spmd._meshes.sharding import HloSharding, from_hlo
from spmd._meshes.spec import Spec
from spmd._program.summary import bytes_text

_WARNING = re.compile(
    r"Involuntary full rematerialization\. The compiler (?:cannot|was not able to) go "
    r"from sharding (?P<given>\{.*?\}) to (?P<wanted>\{.*?\}) (?:efficiently|without)"
    r".*?HLO operation:? %?(?P<name>[\w.-]+) = (?P<shape>\w+\[[\d,]*\])"
)
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_LARGE = 1 << 20
_ONLY_WARNED = (
    "nothing of that size moves in the compiled step: it was a way that the "
    "partitioner only weighed, or the compiler found another later"
)


def rematerialised(case: Case) -> list[Finding]:
    """Read the partitioner's warnings of involuntary full rematerialisation.

    Args:
        case: The step.

    Returns:
        One finding for each operation that it warned of.
    """
    found: dict[str, Finding] = {}
    for text in case.schedule.warnings:
        match = _WARNING.search(text)
        if match is not None:
            made = _finding(case, text, match)
            found.setdefault(made.where, made)
    return list(found.values())


def _finding(case: Case, text: str, match: re.Match[str]) -> Finding:
    shape = Shape.parse(match["shape"])
    given, wanted = (
        _spec(case, match[name], len(shape.dims)) for name in ("given", "wanted")
    )
    dims = _whole(match["given"], shape.dims)
    one = shape.num_bytes // max(1, shape.num_elements)
    whole = math.prod(dims) * one
    named, line = _OP_NAME.search(text), _SOURCE.search(text)
    op_name = named[1] if named else ""
    scope = parse_op_name(op_name)
    source = f"{line[1]}:{line[2]}" if line else ""
    own = [
        c
        for c in case.moving
        if any(m.operand_bytes * _times(c) == whole for m in c.moved)
    ]
    why = [
        f"it is computed split {_words(given, match['given'])}",
        f"what reads it wants it split {_words(wanted, match['wanted'])}",
        "the partitioner knows no way between the two but through the whole",
    ]
    if not own:
        why.append(_ONLY_WARNED)
    cost: dict[str, Any] = {}
    if own:
        cost = cost_of(own, module=scope.module, source=source)
    else:
        cost = {
            "modules": (scope.module,) if scope.module else (),
            "phases": (scope.phase,) if scope.phase else (),
            "sources": (source,) if source else (),
        }
    return Finding(
        kind="full-rematerialisation",
        severity="problem" if own and whole >= _LARGE else "note",
        where=op_name or match["name"],
        what=(
            f"{match['name']} [{', '.join(map(str, dims))}] is made whole on every "
            f"device ({bytes_text(whole)}) and cut again"
        ),
        why=tuple(why),
        wanted=False,
        held_bytes=whole,
        fix=_fix(case, op_name, dims, given, wanted),
        **cost,
    )


def _times(collective: Collective) -> int:
    """How many of its operand make what it leaves on a device; 0 where that is less.

    A whole is gathered, or added up from pieces that are padded with zeros.
    """
    if collective.kind == "all-gather":
        return collective.group_size
    return int(collective.kind == "all-reduce")


def _spec(case: Case, text: str, ndim: int) -> Spec | None:
    try:
        return from_hlo(HloSharding.parse(text), case.mesh, ndim=ndim)
    except ValueError:
        return None


def _words(spec: Spec | None, text: str) -> str:
    return text if spec is None else spec_code(spec)


def _whole(sharding: str, piece: tuple[int, ...]) -> tuple[int, ...]:
    try:
        tiles = HloSharding.parse(sharding).tile_shape
    except ValueError:
        return piece
    return tuple(p * t for p, t in zip(piece, tiles, strict=False))


def _fix(
    case: Case,
    op_name: str,
    dims: tuple[int, ...],
    given: Spec | None,
    wanted: Spec | None,
) -> Fix | None:
    if given is None or wanted is None:
        return None
    middle = between(given, wanted)
    ops = [o for o in case.ops.ops if o.op_name == op_name and o.shape == dims]
    if middle is None or not ops:
        return None
    marked = [u for u in case.ops.seen_through(ops[-1]) if u.sharding]
    change = (
        Change(before=((marked[0].number, middle),))
        if marked
        else Change(values=((ops[-1].number, middle),))
    )
    return Fix(
        text=f"split it {spec_code(middle)}, from where both are one step",
        code=f"spmd.mark_sharding(value, mesh, {spec_code(middle)})",
        place=f"after {ops[-1].source or op_name}",
        change=change,
    )
