"""`Splits`: how the partitioner split each matmul's result, as its pieces show."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from profiling._hlo_binary import read_binary
from profiling._schedule import Schedule
from profiling._step_ops import StepOp, StepOps


@dataclass(frozen=True, slots=True)
class Split:
    """A matmul on one device.

    Attributes:
        piece: Shape of the result there.
        ways: Into how many pieces each dim is cut.
        sums: Into how many pieces the dims are cut that are summed over; the result is
            then a part of a sum.
    """

    piece: tuple[int, ...]
    ways: tuple[int, ...]
    sums: int


class Splits:
    """Looks up how matmuls of a step were split.

    A matmul of the module right after partitioning is that of the trace which has its
    ``op_name``; those of one name are told apart by their order.

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
        pieces: dict[str, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        for instruction in module.entry.instructions:
            if instruction.opcode == "dot":
                left = instruction.operands[0].shape.dims
                summed = math.prod(
                    left[d] for d in instruction.attributes.lhs_contracting
                )
                name = instruction.metadata.op_name
                pieces[name].append((instruction.shape.dims, summed))
        wholes: dict[str, list[StepOp]] = defaultdict(list)
        for op in ops.ops:
            if op.is_dot:
                wholes[op.op_name].append(op)
        for name, found in wholes.items():
            if len(found) != len(pieces[name]):
                continue  # merged, split in steps, or made anew
            for op, (piece, summed) in zip(found, pieces[name], strict=True):
                split = _split(op, piece, summed)
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


def _split(op: StepOp, piece: tuple[int, ...], summed: int) -> Split | None:
    if len(piece) != len(op.shape):
        return None
    if any(p > w or p < 1 for p, w in zip(piece, op.shape, strict=True)):
        return None  # its dims stand in another order
    ways = tuple(math.ceil(w / p) for p, w in zip(piece, op.shape, strict=True))
    whole = math.prod(op.operands[0].shape[d] for d in op.contracted[0])
    return Split(piece, ways, math.ceil(whole / summed) if summed else 1)
