"""Which results of a step the collectives go into, element by element.

The GPU's compiler joins small arrays into one for a collective and cuts them apart
again: a cut says which elements of a one-dimensional array a result is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from profiling._collectives.async_pairs import collective_kind
from profiling._collectives.flow import Flow, Value
from profiling._collectives.origins import Origins, leaf_shape
from profiling._hlo.module import Instruction

Cut: TypeAlias = tuple[int, int] | None
"""First element and the one after the last; None for all."""

_KEEPING = frozenset(  # the same elements at the same places
    """
    all-reduce all-reduce-done all-reduce-start async-done async-start async-update call
    conditional copy copy-done copy-start fusion get-tuple-element opt-barrier parameter
    tuple while
    """.split()
)


@dataclass(frozen=True, slots=True)
class Destinations:
    """Names by collective.

    Attributes:
        found: By collective, each of its arrays apart: names of results and the
            elements that go into them.
    """

    found: dict[Value, dict[tuple[str, Cut], None]] = field(default_factory=dict)

    def of(self, value: Value, cut: Cut = None) -> tuple[str, ...]:
        """Results that a collective goes into.

        Args:
            value: A result of the collective.
            cut: The elements of it that are asked for.

        Returns:
            Their names, in order.
        """
        return tuple(
            dict.fromkeys(
                name
                for name, own in self.found.get(value, ())
                if own is None or cut is None or (own[0] < cut[1] and cut[0] < own[1])
            )
        )


def destinations(flow: Flow, wanted: Iterable[tuple[str, Value]]) -> Destinations:
    """Follow results back to the collectives that they are made of.

    Args:
        flow: Of the module.
        wanted: Results, each with the name of what it belongs to.

    Returns:
        Names by collective.
    """
    made = Destinations()
    by_name: dict[str, list[tuple[Value, Cut]]] = {}
    for name, value in wanted:
        by_name.setdefault(name, []).append((value, None))
    for name, todo in by_name.items():
        seen = set(todo)
        while todo:
            value, cut = todo.pop()
            if collective_kind(value[0].opcode):
                made.found.setdefault(value, {})[name, cut] = None
            for following in _before(flow, value, cut):
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
    return made


def pieces(origins: Origins, operand: Instruction) -> list[tuple[Instruction, Cut]]:
    """Arrays that were joined into one to be moved together.

    Args:
        origins: Of the module.
        operand: Of a collective.

    Returns:
        The arrays, each with where it is in the operand; the operand alone where it was
        not joined.
    """
    value: Value = operand, ()
    while len(operand.shape.dims) == 1:
        instruction = value[0]
        if instruction.opcode == "concatenate":
            return list(_ranges(instruction))
        way, before = origins.flow.before(value)
        if way != "on" or len(before) != 1 or not _is_kept(value, before[0]):
            break
        (value,) = before
    return [(operand, None)]


def _before(flow: Flow, value: Value, cut: Cut) -> Iterator[tuple[Value, Cut]]:
    instruction, index = value
    before = flow.before(value)[1]
    if instruction.opcode == "slice" and len(instruction.shape.dims) == 1:
        start, limit, stride = instruction.attributes.slices[0]
        if stride == 1:
            cut = (start, limit) if cut is None else (start + cut[0], start + cut[1])
            yield (instruction.operands[0], index), cut
            return
    if cut is None:
        yield from ((v, None) for v in before)
    elif instruction.opcode == "concatenate":
        for piece, (start, limit) in _ranges(instruction):
            first, last = max(cut[0], start), min(cut[1], limit)
            if first < last:
                is_all = (first, last) == (start, limit)
                yield (piece, ()), None if is_all else (first - start, last - start)
    else:
        yield from ((v, cut if _is_kept(value, v) else None) for v in before)


def _ranges(joined: Instruction) -> Iterator[tuple[Instruction, tuple[int, int]]]:
    at = 0
    for piece in joined.operands:
        yield piece, (at, at + piece.shape.num_elements)
        at += piece.shape.num_elements


def _is_kept(value: Value, before: Value) -> bool:
    """Whether elements have the same place in a value and in what it comes from."""
    if value[0].opcode in _KEEPING:
        return True
    shapes = [leaf_shape(i.shape, index).dims for i, index in (value, before)]
    return shapes[0] == shapes[1]
