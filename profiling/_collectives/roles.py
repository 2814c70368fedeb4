"""What a moved array is to the step: data flow decides, metadata where it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling._collectives.collective import Phase, Role
from profiling._collectives.origins import Origin
from profiling._collectives.step_values import Given
from profiling._hlo.module import Instruction
from profiling._hlo.op_name import Scope, parse_op_name

_REDUCING = ("all-reduce", "reduce-scatter")
_RELAYING = ("all-to-all", "collective-permute", "ragged-all-to-all")
_FEW = 4
_PLACING = frozenset(
    ("custom_sharding", "mark_sharding", "sharding_constraint", "sharding", "reshard")
)
"""Operations that say how a value is to be split, and compute nothing."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one array that a collective moves.

    Attributes:
        kind: The collective's.
        is_windowed: It is a step of a windowed einsum.
        num_elements: Of the operand on one device.
        is_numbers: The operand is a number, or several computed one by one.
        origin: Where the operand comes from.
        goes_into: Parameters whose next value, gradient or optimizer state the result
            is, element by element.
        is_output: The result is another output of the step.
        is_after: The operand is computed from reduced gradients.
        scope: What metadata says.
    """

    kind: str
    is_windowed: bool
    num_elements: int
    is_numbers: bool
    origin: Origin
    goes_into: tuple[str, ...]
    is_output: bool
    is_after: bool
    scope: Scope


@dataclass(frozen=True, slots=True)
class Part:
    """What an array is.

    Attributes:
        role: See `Moved`.
        tensor: See `Moved`.
        phase: See `Moved`.
    """

    role: Role
    tensor: str
    phase: Phase


def part(facts: Facts, inputs: Sequence[Given]) -> Part:
    """Say what an array is to the step.

    Args:
        facts: What is known of it.
        inputs: The step's inputs.

    Returns:
        Role, name and phase.
    """
    phase = facts.scope.phase or ("update" if facts.is_after else "")
    computed = facts.origin.producer is not None
    reduces = facts.kind in _REDUCING or (facts.is_windowed and computed)
    into = _joined(facts.goes_into)
    reduces = reduces and _phase_of(facts.origin.producer) != "update"
    if facts.is_numbers and not (into and reduces):
        return Part("scalar", "", phase)
    if into and reduces:
        return Part("gradient reduction", into, "backward")
    if facts.origin.inputs:
        return _of_inputs(facts, inputs)
    if facts.num_elements <= _FEW and not into:
        return Part("scalar", "", phase)
    if phase == "update":
        return Part("optimizer", into, phase)
    if facts.is_output and reduces and phase == "backward":
        return Part("gradient reduction", "", phase)
    if facts.kind in _RELAYING and not facts.is_windowed:
        return Part("reshard", into, phase)
    if into or facts.scope.operation in _PLACING:
        return Part("reshard", into, phase)
    if not computed and not phase:
        return Part("unknown", "", "")  # made of constants
    return Part("activation", "", phase)


def _of_inputs(facts: Facts, inputs: Sequence[Given]) -> Part:
    """Of what is an input, or several, as given."""
    given = [inputs[n] for n in facts.origin.inputs]
    phase = facts.scope.phase
    for kind in ("parameter", "gradient", "optimizer"):
        names = tuple(g.name for g in given if g.kind == kind)
        if not names:
            continue
        if kind != "parameter":
            return Part("optimizer", _joined(names), phase)
        if facts.kind in _RELAYING and not facts.is_windowed:
            return Part("reshard", _joined(names), phase)
        role: Role = "optimizer" if phase == "update" else "weight gather"
        return Part(role, _joined(names), phase)
    return Part("input", _joined(tuple(g.name for g in given)), phase)


def _phase_of(producer: Instruction | None) -> Phase:
    return parse_op_name(producer.metadata.op_name).phase if producer else ""


def _joined(names: tuple[str, ...]) -> str:
    """Names as one; no more than fit in a table."""
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} more"
