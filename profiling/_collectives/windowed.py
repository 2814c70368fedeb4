"""Permutes that together are one windowed einsum.

Where a matmul needs a gathered operand, or its result scattered, XLA's partitioner can
pass shards around a ring in a loop and multiply meanwhile ("collective matmul": Wang et
al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep
Learning Models", ASPLOS 2023). The first and last permutes of a ring are often outside
of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable

from profiling._collectives.async_pairs import Found
from profiling._hlo.loops import Loop
from profiling._hlo.module import Instruction, Module

_PASSES = frozenset(
    ("get-tuple-element", "bitcast", "copy", "tuple", "reshape", "copy-done")
)
_NAME = "windowed_dot_general"
_MULTIPLIES = ("dot", "convolution")
_MOST_HOPS = 4


def windowed_loops(
    module: Module, loops: Iterable[Loop], found: Iterable[Found]
) -> dict[Instruction, Loop]:
    """Which permutes belong to which loop.

    Args:
        module: Where they are.
        loops: Its loops.
        found: Its collectives.

    Returns:
        Loop by the permute's instruction.
    """
    permutes = [f for f in found if f.kind == "collective-permute"]
    scopes: dict[str, set[str]] = {}
    for permute in permutes:
        scope = permute.instruction.metadata.op_name
        scopes.setdefault(permute.computation.name, set()).add(scope)
    windowed = {
        loop.instruction: loop
        for loop in loops
        if loop.body in scopes
        and (_NAME in loop.body or _multiplied(module, loop) & scopes[loop.body])
    }
    by_body = {loop.body: loop for loop in windowed.values()}
    joined = {}
    for permute in permutes:
        loop = by_body.get(permute.computation.name)
        loop = loop or _behind(permute, windowed)
        if loop is not None:
            joined[permute.instruction] = loop
    for loop in windowed.values():
        ends = {f.result: f for f in permutes if f.computation.name == loop.computation}
        for source in _sources(loop.instruction):
            if source in ends:
                joined.setdefault(ends[source].instruction, loop)
    return joined


def _multiplied(module: Module, loop: Loop) -> set[str]:
    """Scopes of the matmuls that a loop runs.

    The partitioner's permutes have the scope of their matmul; a permute that the user
    wrote, as for ring attention or pipelines, has its own.
    """
    found: set[str] = set()
    todo, seen = [loop.body], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for instruction in module.computation(name).instructions:
            if instruction.opcode in _MULTIPLIES:
                found.add(instruction.metadata.op_name)
            if instruction.opcode in ("fusion", "call"):
                todo += instruction.called
    return found - {""}


def _behind(permute: Found, windowed: dict[Instruction, Loop]) -> Loop | None:
    """The loop that a permute takes its operand from."""
    for source in _sources(permute.start):
        if source in windowed:
            return windowed[source]
    return None


def _sources(instruction: Instruction) -> Iterable[Instruction]:
    """What an instruction's operands are, behind what only passes a value on."""
    level = list(instruction.operands)
    for _ in range(_MOST_HOPS):
        yield from level
        level = [o for i in level if i.opcode in _PASSES for o in i.operands]
