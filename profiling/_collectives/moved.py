"""`MovedFinder`: what each collective moves, array by array."""

from __future__ import annotations

from dataclasses import replace

from profiling._collectives.collective import Moved
from profiling._collectives.destinations import Cut, destinations, pieces
from profiling._collectives.flow import Value
from profiling._collectives.ops import CollectiveOp
from profiling._collectives.origins import Origins, leaf_shape
from profiling._collectives.roles import Facts, part
from profiling._collectives.step_values import StepValues
from profiling._collectives.told import Told
from profiling._hlo.module import Instruction, Module
from spmd._program.program import Program


class MovedFinder:
    """Says of the arrays that collectives move what they are to the step.

    Args:
        module: The final module of one device.
        program: What it was compiled from; None if nobody has it.

    Raises:
        ValueError: A program of other inputs or outputs than the module.
    """

    def __init__(self, module: Module, program: Program | None) -> None:
        self._origins = Origins(module)
        self._values = StepValues.of(module, program, self._origins)
        parameters = (g.name for g in self._values.inputs if g.kind == "parameter")
        self._told = Told(module, parameters)
        flow = self._origins.flow
        self._into = destinations(flow, self._values.results)
        outputs = (("", value) for value in self._values.outputs)
        self._outputs = destinations(flow, outputs)
        self._after: set[Instruction] | None = None
        # The parts of one transfer that is spread over several fusions.
        self._channels = {
            (v[0].opcode, v[0].attributes.channel): v for v in self._into.found
        }

    def __call__(self, op: CollectiveOp) -> tuple[Moved, ...]:
        """What one collective moves.

        Args:
            op: The collective, of the finder's module.

        Returns:
            Its arrays, most bytes first.
        """
        operands = op.instruction.operands
        if op.kind == "ragged-all-to-all":
            operands = operands[:1]  # the others say how much goes where
        arrays = [
            (number, array, cut)
            for number, operand in enumerate(operands)
            for array, cut in pieces(self._origins, operand)
        ]
        sizes = [array.shape.num_bytes for _, array, _ in arrays]
        found = [
            self._moved(op, *given, share)
            for given, share in zip(
                arrays, split_bytes(op.wire_bytes, sizes), strict=True
            )
        ]
        if op.kind == "all-to-all" and len(found) > 1:
            found = _whole(found)
        return tuple(sorted(found, key=lambda m: -m.operand_bytes))

    def _moved(
        self,
        op: CollectiveOp,
        number: int,
        array: Instruction,
        cut: Cut,
        wire_bytes: int,
    ) -> Moved:
        origin = self._origins.of((array, ()))
        result = result_of(op.instruction, number)
        scope, line = self._told.scope(op, number, array, origin.producer)
        facts = Facts(
            kind=op.kind,
            is_windowed=op.form == "windowed",
            num_elements=array.shape.num_elements,
            is_numbers=self._origins.is_numbers((array, ())),
            origin=origin,
            goes_into=self._goes_into(op, result, cut),
            is_output=bool(self._outputs.of(result, cut)),
            is_after=origin.producer is not None and array in self._after_gradients(),
            scope=scope,
        )
        what = part(facts, self._values.inputs)
        scope, line = self._told.of_tensor(scope, line, what.tensor)
        return Moved(
            role=what.role,
            tensor=what.tensor,
            phase=what.phase,
            module=scope.module,
            source=line,
            shape=str(array.shape),
            operand_bytes=array.shape.num_bytes,
            wire_bytes=wire_bytes,
        )

    def _after_gradients(self) -> set[Instruction]:
        """What the entry computes from reduced gradients: the update."""
        if self._after is None:
            entry = self._origins.module.entry
            reduced = {i for i, _ in self._into.found} & set(entry.instructions)
            self._after = set()
            for instruction in entry.instructions:
                if any(o in reduced or o in self._after for o in instruction.operands):
                    self._after.add(instruction)
        return self._after

    def _goes_into(self, op: CollectiveOp, result: Value, cut: Cut) -> tuple[str, ...]:
        if op.form == "async fusion" and result not in self._into.found:
            instruction = op.instruction
            key = instruction.opcode, instruction.attributes.channel
            result = self._channels.get(key, result)
        return self._into.of(result, cut)


def _whole(parts: list[Moved]) -> list[Moved]:
    """One array where an all-to-all has an operand for each device."""
    first, *others = [replace(part, wire_bytes=0) for part in parts]
    if any(other != first for other in others):
        return parts
    return [
        replace(
            first,
            shape=f"{len(parts)} x {first.shape}",
            operand_bytes=sum(part.operand_bytes for part in parts),
            wire_bytes=sum(part.wire_bytes for part in parts),
        )
    ]


def result_of(instruction: Instruction, number: int) -> Value:
    """One result of a collective.

    Args:
        instruction: The collective, or its start.
        number: Of the operand.

    Returns:
        What becomes of the operand.
    """
    opcode = instruction.opcode
    is_start = opcode.endswith("-start") and opcode != "all-reduce-start"
    index: tuple[int, ...] = (1,) if is_start else ()
    is_tuple = leaf_shape(instruction.shape, index).is_tuple
    return instruction, (*index, number) if is_tuple else index


def split_bytes(whole: int, shares: list[int]) -> list[int]:
    """Split a number of bytes in proportion; the parts add up to it.

    Args:
        whole: What to split.
        shares: Weights.

    Returns:
        A part for each share.

    Example:
        >>> split_bytes(700, [512, 256, 32])
        [448, 224, 28]
        >>> split_bytes(10, [1, 1, 1])
        [3, 3, 4]
    """
    total, before, parts = sum(shares), 0, []
    for share in shares:
        after = before + share
        parts.append(whole * after // total - whole * before // total if total else 0)
        before = after
    return parts
