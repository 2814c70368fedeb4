"""Find attention that a causal mask halves, in a step as it was traced.

A compiler multiplies whole squares of scores and throws the upper half away. The model
needs the lower half only, and a kernel that skips the rest (FlashAttention) does no
other work, so what counts as the model's is half of these products.

The mask shows as a comparison in order (``>=``) of one position with another, both made
of ``iota``; a product is attention's where it runs over batch and heads and one of its
operands, or its result, is such a square. A mask that is an input does not show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from profiling._hlo.module import Instruction, Module

_ORDER = frozenset(("GE", "GT", "LE", "LT"))
_PASSING = frozenset(
    "add subtract broadcast convert copy reshape transpose bitcast slice".split()
)
_FIXED = frozenset(("constant", "parameter"))
_MOST_STEPS = 12


def causal_sizes(module: Module) -> frozenset[int]:
    """Lengths of the sequences that a causal mask is made for.

    Args:
        module: A step as it was traced, before it was partitioned.

    Returns:
        Such as ``{2048}``; empty where nothing compares positions.
    """
    return frozenset(
        instruction.shape.dims[-1]
        for instruction in module.instructions()
        if instruction.opcode == "compare"
        and instruction.attributes.direction in _ORDER
        and _square(instruction.shape.dims)
        and all(_is_position(operand) for operand in instruction.operands)
    )


def is_causal(dot: Instruction, sizes: Collection[int]) -> bool:
    """Whether a product is one of causal attention.

    Args:
        dot: A product.
        sizes: From `causal_sizes`.

    Returns:
        True for queries by keys, scores by values, and their gradients.
    """
    attributes = dot.attributes
    if not attributes.lhs_batch or len(dot.operands) < 2:
        return False
    left, right = (operand.shape.dims for operand in dot.operands[:2])
    own = dot.shape.dims[len(attributes.lhs_batch) :]
    squares = (
        _without(left, attributes.lhs_batch),
        _without(right, attributes.rhs_batch),
        own,
    )
    return any(_square(dims) and dims[0] in sizes for dims in squares if len(dims) == 2)


def _square(dims: tuple[int, ...]) -> bool:
    return len(dims) >= 2 and dims[-1] == dims[-2] > 1


def _without(dims: tuple[int, ...], batch: Iterable[int]) -> tuple[int, ...]:
    batch = set(batch)
    return tuple(size for dim, size in enumerate(dims) if dim not in batch)


def _is_position(value: Instruction) -> bool:
    """Whether a value counts along a dim, moved by a constant at most."""
    counts = False
    todo = [(value, 0)]
    while todo:
        value, steps = todo.pop()
        if value.opcode == "iota":
            counts = True
        elif value.opcode in _PASSING and steps < _MOST_STEPS:
            todo += [(operand, steps + 1) for operand in value.operands]
        elif value.opcode not in _FIXED:
            return False
    return counts
