"""Whether a matmul stands between a collective's start and its end."""

from __future__ import annotations

from profiling._collectives.ops import CollectiveOp
from profiling._hlo.module import Instruction, Module
from profiling._timeline.op_cost import OpCosts


class MatmulBetween:
    """Answers for the collectives of one module; each computation is counted once.

    Args:
        module: The module.
        costs: Of its instructions.
    """

    def __init__(self, module: Module, costs: OpCosts) -> None:
        self._module = module
        self._costs = costs
        self._counts: dict[str, list[int]] = {}

    def __call__(self, op: CollectiveOp) -> bool:
        """Whether one stands in between.

        Args:
            op: A collective of the module.

        Returns:
            Whether any instruction from its start to its end multiplies. A fusion that
            starts one multiplies beside it; what ends one has waited for it.
        """
        counts = self._computation(op.computation)
        first = op.start_at if op.start.opcode == "fusion" else op.start_at + 1
        last = op.done_at if op.done_at >= 0 else len(counts) - 1
        return last > first and counts[last] > counts[first]

    def _computation(self, name: str) -> list[int]:
        """For each instruction, how many before it multiply; one more for the end."""
        found = self._counts.get(name)
        if found is None:
            found = [0]
            for instruction in self._module.computation(name).instructions:
                found.append(found[-1] + self._multiplies(instruction))
            self._counts[name] = found
        return found

    def _multiplies(self, instruction: Instruction) -> bool:
        if instruction.opcode in ("while", "call", "conditional"):
            return any(self._computation(name)[-1] for name in instruction.called)
        return bool(self._costs(instruction).matmuls)
