"""`OpCosts`: seconds of one instruction on a device's compute stream.

A roofline: the longest of its matmuls at the peak of their dtype, its other arithmetic
at the vector units' rate, and its bytes at the memory's bandwidth, each with the share
of it that is reached (`EFFICIENCY`), and what one kernel costs besides. Nothing is
charged for what only names a value.

Left out: caches that keep what the kernel before wrote, matrices too small to fill the
device, and contention of streams for memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from profiling._collectives.async_pairs import collective_kind
from profiling._hlo.module import Computation, Instruction, Module
from profiling._hlo.shape import Shape
from profiling._targets.target import Target
from profiling._timeline.efficiency import EFFICIENCY, FFT_TILE_BYTES
from profiling._timeline.flops import Matmul, matmul, vector_flops
from profiling._timeline.traffic import Traffic, traffic

_FREE = frozenset(
    """
    add-dependency after-all bitcast constant domain get-tuple-element opt-barrier
    parameter partition-id replica-id tuple
    """.split()
)
_FREE_CALLS = frozenset(
    """
    AllocateBuffer AssumeGatherIndicesInBound ConcatBitcast LayoutConstraint Sharding
    annotate_device_placement
    """.split()
)


@dataclass(frozen=True, slots=True)
class OpCost:
    """What one execution costs.

    Attributes:
        seconds: On the compute stream; 0 for what costs nothing.
        kind: ``matmul``, ``fusion``, ``copy`` or the opcode.
        matmuls: What it multiplies.
    """

    seconds: float
    kind: str
    matmuls: tuple[Matmul, ...] = ()


_NOTHING = OpCost(0.0, "")


class OpCosts:
    """Costs of a module's instructions, each worked out once.

    Args:
        module: The module.
        target: What it runs on.
    """

    def __init__(self, module: Module, target: Target) -> None:
        self._module = module
        self._target = target
        self._efficiency = EFFICIENCY[target.kind]
        self._known: dict[Instruction, OpCost] = {}

    def __call__(self, instruction: Instruction) -> OpCost:
        """Cost of an instruction that is neither control flow nor a collective.

        Args:
            instruction: Of the module.

        Returns:
            Its cost; of an asynchronous start, that of what it starts.
        """
        if instruction.opcode in _FREE:
            return _NOTHING
        found = self._known.get(instruction)
        if found is None:
            found = self._known[instruction] = self._cost(instruction)
        return found

    def aside_seconds(self, start: Instruction) -> float:
        """Time of what runs beside the compute stream.

        Args:
            start: ``copy-start``, ``async-start``, or one such as ``slice-start``,
                which XLA writes for an asynchronous slice.

        Returns:
            Seconds; of a copy between memories, those of moving its result.
        """
        if start.called:
            return self(start).seconds
        at = 0 if start.opcode == "copy-start" else 1  # then operands come first
        parts = start.shape.elements[at : at + 1] or (start.shape,)
        return sum(part.num_bytes for part in parts) / self._bandwidth

    @property
    def _bandwidth(self) -> float:
        return self._target.hbm_bandwidth * self._efficiency.memory

    def _cost(self, instruction: Instruction) -> OpCost:
        opcode = instruction.opcode
        if opcode.endswith(("-done", "-update")) or self._is_free(instruction):
            return _NOTHING
        if opcode == "async-start":
            body = self._module.computation(instruction.called[0])
            parts = [self(i) for i in body.instructions]
            matmuls = tuple(m for part in parts for m in part.matmuls)
            return OpCost(sum(part.seconds for part in parts), opcode, matmuls)
        inside = [(i, matmul(i)) for i in self._inside(instruction)]
        matmuls = tuple(found for _, found in inside if found is not None)
        rest = [i for i, found in inside if found is None]
        work = max(
            sum(m.flops / self._matmul_rate(m.dtype) for m in matmuls),
            sum(vector_flops(i) / self._vector_rate(i) for i in rest),
            self._memory_seconds(instruction),
        )
        kind = "matmul" if matmuls else opcode.removesuffix("-start")
        return OpCost(work + self._efficiency.launch_s, kind, matmuls)

    def _is_free(self, instruction: Instruction) -> bool:
        if instruction.opcode == "custom-call":
            return instruction.attributes.custom_call_target in _FREE_CALLS
        if self._target.kind == "tpu" and _is_scalar(instruction.shape):
            return all(_is_scalar(o.shape) for o in instruction.operands)
        if instruction.opcode == "fusion" and instruction.called:
            body = self._module.computation(instruction.called[0])
            return all(i.opcode in _FREE or _moves(i) for i in body.instructions)
        return False

    def _inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instruction itself, or what a fusion's body does, without collectives."""
        if instruction.opcode != "fusion" or not instruction.called:
            yield instruction
            return
        body: Computation = self._module.computation(instruction.called[0])
        for inner in body.instructions:
            if not _moves(inner):
                yield from self._inside(inner)

    def _memory_seconds(self, instruction: Instruction) -> float:
        moved = traffic(self._module, instruction, sectors=self._target.kind == "gpu")
        if instruction.opcode == "fft":
            times = self._fft_passes(instruction)
            moved = Traffic(moved.memory * times, moved.fast * times)
        fast = self._bandwidth * self._efficiency.vector_memory
        return moved.memory / self._bandwidth + moved.fast / fast

    def _fft_passes(self, instruction: Instruction) -> int:
        """How often an FFT reads and writes all of its data.

        Each dim of the transform is a pass of its own, or several where one transform
        is too long for a thread block. An inverse one on a GPU is scaled by 1/n in
        another: XLA's `FftThunk` calls cuBLAS for that.
        """
        item = instruction.shape.num_bytes / max(1, instruction.shape.num_elements)
        tile = math.log(FFT_TILE_BYTES / item)
        lengths = instruction.attributes.fft_length
        passes = sum(max(1, math.ceil(math.log(max(2, n)) / tile)) for n in lengths)
        scaled = self._target.kind == "gpu" and "I" in instruction.attributes.fft_kind
        return passes + scaled

    def _matmul_rate(self, dtype: str) -> float:
        return self._target.peak_flops(dtype) * self._efficiency.matmul

    def _vector_rate(self, instruction: Instruction) -> float:
        """FLOP/s outside of the matrix units; float64 has half of float32's."""
        share = self._efficiency.vector
        wide = next(instruction.shape.leaves(), instruction.shape).dtype
        if wide in ("f64", "c128"):
            share /= 2
        return self._target.peak_flops(self._efficiency.vector_of) * share


def _is_scalar(shape: Shape) -> bool:
    return shape.num_elements <= max(1, len(shape.elements))


def _moves(instruction: Instruction) -> bool:
    """Whether it is a collective inside of a fusion, or marks one."""
    if collective_kind(instruction.opcode):
        return True
    target = instruction.attributes.custom_call_target
    return target.startswith("AsyncCollective")
