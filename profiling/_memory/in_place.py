"""Which results take over an operand's memory, and which may.

After XLA's `HloDataflowAnalysis` (`GetInPlaceInputOutputPairs`,
`CanShareOperandBufferWithUser`), as far as a module's text says what is needed.
"""

from __future__ import annotations

from profiling._hlo.module import Computation, Instruction, Module
from profiling._hlo.shape import Shape

_FIRST_OPERAND = frozenset(("dynamic-update-slice", "scatter"))
_ELEMENTWISE = frozenset(
    """
    abs acos acosh add and asin asinh atan2 atanh bitcast-convert cbrt ceil clamp
    compare complex convert cosh cosine count-leading-zeros divide erf exponential
    exponential-minus-one floor imag is-finite log log-plus-one logistic map maximum
    minimum multiply negate not or popcnt power real reduce-precision remainder
    round-nearest-afz round-nearest-even rsqrt select shift-left
    shift-right-arithmetic shift-right-logical sign sine sinh sqrt stochastic-convert
    subtract tan tanh xor
    """.split()
)
_SAME_PLACE = frozenset(("bitcast", "tuple", "copy"))


class InPlace:
    """What one module's instructions do in place.

    Args:
        module: Any module.
        reduces_in_place: An all-reduce may write over what it reads, as NCCL's does.
    """

    def __init__(self, module: Module, *, reduces_in_place: bool) -> None:
        self._module = module
        self._reduces = reduces_in_place
        self._elementwise: dict[str, frozenset[int]] = {}
        self._updated: dict[str, dict[int, int]] = {}

    def must(self, instruction: Instruction) -> dict[int, int]:
        """Results that are an operand, changed where it lies.

        Args:
            instruction: Any.

        Returns:
            Operand's number by element of the result; a single result is element 0.
        """
        if instruction.opcode in _FIRST_OPERAND:
            width = len(instruction.shape.elements) or 1
            return {i: i for i in range(width)}
        if instruction.opcode == "fusion" and instruction.called:
            return self._updates(instruction.called[0])
        return {}

    def may(self, instruction: Instruction, operand: int, result: int) -> bool:
        """Whether a result may be put where an operand lies that nothing else reads.

        Args:
            instruction: That reads it.
            operand: Number of the operand, an array.
            result: Element of the result; 0 for a single one.

        Returns:
            True also where it need not be.
        """
        shape = instruction.shape
        if shape.is_tuple:
            shape = shape.elements[result]
        if not _same_layout(instruction.operands[operand].shape, shape):
            return False
        opcode = instruction.opcode
        if opcode == "fusion" and instruction.called:
            return operand in self._passed(instruction.called[0])
        if opcode in ("all-reduce", "all-reduce-start"):
            return self._reduces and operand == result
        return opcode in _ELEMENTWISE or (opcode == "sort" and operand == result)

    def _passed(self, name: str) -> frozenset[int]:
        """Parameters of a fusion that are read element by element only."""
        if name not in self._elementwise:
            computation = self._module.computation(name)
            spoilt: set[Instruction] = set()
            for instruction in reversed(computation.instructions):
                opcode = instruction.opcode
                passes = opcode in _ELEMENTWISE or opcode in _SAME_PLACE
                if not passes or instruction in spoilt:
                    spoilt.update(instruction.operands)
            self._elementwise[name] = frozenset(
                p.attributes.parameter
                for p in computation.parameters
                if p not in spoilt
            )
        return self._elementwise[name]

    def _updates(self, name: str) -> dict[int, int]:
        if name not in self._updated:
            self._updated[name] = dict(_updates(self._module.computation(name)))
        return self._updated[name]


def _updates(fused: Computation) -> list[tuple[int, int]]:
    """Parameters that a fusion's root writes a slice of, by element of the root."""
    roots = fused.root.operands if fused.root.opcode == "tuple" else (fused.root,)
    found = []
    for i, root in enumerate(roots):
        at = _through(root)
        if at.opcode in _FIRST_OPERAND and at.operands and not at.shape.is_tuple:
            source = _through(at.operands[0])
            if source.opcode == "parameter" and source.shape.num_bytes == (
                root.shape.num_bytes
            ):
                found.append((i, source.attributes.parameter))
    return found


def _through(instruction: Instruction) -> Instruction:
    while instruction.opcode == "bitcast" and instruction.operands:
        instruction = instruction.operands[0]
    return instruction


def _same_layout(a: Shape, b: Shape) -> bool:
    return (
        not a.is_tuple
        and a.dims == b.dims
        and a.minor_to_major == b.minor_to_major
        and a.num_bytes == b.num_bytes
        and a.memory_space == b.memory_space
    )
