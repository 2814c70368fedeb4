"""`Splits`: how the partitioner split each matmul's result, as its pieces show."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from profiling._hlo.binary import read_binary
from profiling._hlo.module import Computation, Instruction, Module
from profiling._schedule import Schedule
from profiling._step.ops import StepOp, StepOps

_WINDOWED = "windowed_dot_general"
_INLINED = re.compile(r"^(?:[\w.]+/)*?(?=(?:forward|backward|update)/)")
_MOVES = frozenset(
    """
    add bitcast broadcast concatenate copy dynamic-slice dynamic-update-slice pad
    reshape slice transpose collective-permute
    """.split()
)


@dataclass(frozen=True, slots=True)
class Split:
    """A matmul on one device.

    Attributes:
        piece: Shape of the result there.
        ways: Into how many pieces each dim is cut.
        sums: Into how many pieces the dims are cut that are summed over; the result is
            then a part of a sum. 1 of a windowed einsum, which adds up as it goes.
    """

    piece: tuple[int, ...]
    ways: tuple[int, ...]
    sums: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A matmul of the partitioned module; `summed` is 0 where it does not say."""

    name: str
    dims: tuple[int, ...]
    summed: int


class Splits:
    """Looks up how matmuls of a step were split.

    A matmul of the module right after partitioning is that of the trace which has its
    ``op_name``; those of one name are told apart by their order. One in a loop stands
    there once, as in the trace. A windowed einsum, which the partitioner made a loop
    over pieces of one operand, counts as the matmul that it was.

    Args:
        ops: The traced step.
        schedule: What it was compiled to; without the partitioned module nothing is
            known.
    """

    def __init__(self, ops: StepOps, schedule: Schedule) -> None:
        self._found: dict[StepOp, Split] = {}
        compiled = schedule.compiled
        if compiled is None or compiled.partitioned is None:
            return
        module = read_binary(compiled.partitioned, source="the partitioned module")
        pieces: dict[str, list[_Piece]] = defaultdict(list)
        for piece in _pieces(module, module.entry):
            pieces[piece.name].append(piece)
        wholes: dict[str, list[StepOp]] = defaultdict(list)
        for op in ops.ops:
            if op.is_dot:
                wholes[_INLINED.sub("", op.op_name)].append(op)
        for name, found in wholes.items():
            if len(found) != len(pieces[name]):
                continue  # merged, split in steps, or made anew
            for op, piece in zip(found, pieces[name], strict=True):
                split = _split(op, piece)
                if split is not None:
                    self._found[op] = split

    def __bool__(self) -> bool:
        return bool(self._found)

    def of(self, op: StepOp) -> Split | None:
        """How a matmul was split.

        Args:
            op: A dot of the step.

        Returns:
            None where it cannot be told.
        """
        return self._found.get(op)


def _pieces(module: Module, computation: Computation) -> Iterator[_Piece]:
    """Matmuls in the order in which they run, each loop's once."""
    for instruction in computation.instructions:
        name = _INLINED.sub("", instruction.metadata.op_name)
        if instruction.opcode == "dot":
            left = instruction.operands[0].shape.dims
            summed = math.prod(left[d] for d in instruction.attributes.lhs_contracting)
            yield _Piece(name, instruction.shape.dims, summed)
        elif instruction.opcode == "convolution":
            kernel = instruction.operands[1].shape
            features = kernel.dims[instruction.attributes.kernel_output_dim]
            summed = kernel.num_elements // max(1, features)
            yield _Piece(name, instruction.shape.dims, summed)
        elif instruction.opcode == "while" and _WINDOWED in instruction.called[0]:
            dims = _windowed(module.computation(instruction.called[0]))
            if dims is not None:
                yield _Piece(name, dims, 0)
        elif instruction.opcode in ("while", "call", "conditional"):
            names = instruction.called
            for inside in names[:1] if instruction.opcode == "while" else names:
                yield from _pieces(module, module.computation(inside))


def _windowed(body: Computation) -> tuple[int, ...] | None:
    """Shape of what the matmul of a windowed einsum's body is gathered in."""
    made: set[Instruction] = set()
    for instruction in body.instructions:
        from_dot = any(operand in made for operand in instruction.operands)
        if instruction.opcode == "dot" or (from_dot and instruction.opcode in _MOVES):
            made.add(instruction)
    root = body.root
    found = [o.shape.dims for o in root.operands if o in made]
    return max(found, key=math.prod) if found else None


def _split(op: StepOp, found: _Piece) -> Split | None:
    piece = found.dims
    if len(piece) != len(op.shape):
        return None
    if any(p > w or p < 1 for p, w in zip(piece, op.shape, strict=True)):
        return None  # its dims stand in another order
    ways = tuple(math.ceil(w / p) for p, w in zip(piece, op.shape, strict=True))
    return Split(piece, ways, math.ceil(_summed(op) / (found.summed or _summed(op))))


def _summed(op: StepOp) -> int:
    """How many products each element of the whole result adds up."""
    side = 1 if op.name == "convolution" else 0
    return max(1, math.prod(op.operands[side].shape[d] for d in op.contracted[side]))
