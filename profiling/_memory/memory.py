"""`memory_use`: what a device holds during a step, and where that is known from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from profiling._compiling.compiled import Compiled, Memory
from profiling._hlo.module import Module
from profiling._hlo.op_name import parse_op_name
from profiling._memory.buffers import BufferAssignment, Placed, from_proto
from profiling._memory.buffers_text import load_assignment
from profiling._memory.estimate import MemoryEstimate, Platform, estimate
from profiling._memory.held_tensors import held_tensors
from profiling._memory.in_place import InPlace
from profiling._memory.lives import Life, lives
from profiling._memory.temporaries import alive_at_peak
from profiling._memory.use import HeldTensor, MemoryUse, Origin, PeakBuffer
from profiling._targets.target import Target

if TYPE_CHECKING:
    from spmd._meshes.mesh import Mesh
    from spmd._program.program import Program

PADDING = "padding"
"""Role of the bytes by which inputs are larger than their data, as on a TPU."""


def memory_use(
    module: Module,
    *,
    program: Program | None = None,
    mesh: Mesh | None = None,
    target: Target | None = None,
    compiled: Compiled | None = None,
    assignment: Path | None = None,
) -> MemoryUse:
    """Say what a device holds during a step.

    Args:
        module: Of one device, scheduled.
        program: What was compiled: gives names, roles and specs of the inputs.
        mesh: Names the axes that split them; None for the program's.
        target: Gives the capacity; of `compiled` it is known.
        compiled: What the compiler made: its figures are the truth.
        assignment: File of its buffer assignment, from a dump: the next best.

    Returns:
        Figures, inputs, and what lives at the peak. Without `compiled` and `assignment`
        they are an estimate, see `profiling._memory.estimate`.

    Raises:
        FileNotFoundError: There is no such file of an assignment.
        ValueError: A damaged file, or a program with another number of inputs.
    """
    if compiled is not None:
        target = compiled.target
    tensors = held_tensors(module, program=program, mesh=mesh)
    figures = _figures(module, _platform(module, target), compiled, assignment)
    memory = figures.memory
    return MemoryUse(
        origin=figures.origin,
        argument_bytes=memory.argument_bytes,
        output_bytes=memory.output_bytes,
        alias_bytes=memory.alias_bytes,
        temp_bytes=memory.temp_bytes,
        peak_bytes=memory.peak_bytes,
        total_bytes=memory.total_bytes,
        capacity_bytes=None if target is None else target.hbm_bytes,
        argument_bytes_by_role=_by_role(tensors, memory.argument_bytes),
        tensors=tensors,
        at_peak=figures.at_peak,
    )


@dataclass(frozen=True, slots=True)
class _Figures:
    origin: Origin
    memory: Memory
    at_peak: tuple[PeakBuffer, ...]


def _figures(
    module: Module,
    platform: Platform,
    compiled: Compiled | None,
    assignment: Path | None,
) -> _Figures:
    if compiled is not None:
        found = from_proto(compiled.buffers or b"")
        return _Figures("compiled", compiled.memory, _alive(module, found, platform))
    if assignment is not None:
        found = load_assignment(assignment)
        if found.allocations:
            memory = _assigned(found)
            return _Figures("compiled", memory, _alive(module, found, platform))
    guess = estimate(module, platform)
    return _Figures("estimate", _estimated(guess), _guessed(guess))


def _platform(module: Module, target: Target | None) -> Platform:
    """Whose compiler made a module; where nobody says so, by how it writes."""
    if target is not None:
        return target.kind
    for instruction in module.instructions():
        config = instruction.attributes.backend_config
        if "operation_queue_id" in config or "_backend_config" in config:
            return "gpu"
        if "window_config" in config or "flag_configs" in config:
            return "tpu"
        if instruction.opcode in ("all-gather-start", "all-to-all-start"):
            return "gpu"
    return "cpu"


def _by_role(tensors: tuple[HeldTensor, ...], argument_bytes: int) -> dict[str, int]:
    roles: dict[str, int] = {}
    for tensor in tensors:
        roles[tensor.role] = roles.get(tensor.role, 0) + tensor.device_bytes
    if rest := argument_bytes - sum(roles.values()):
        roles[PADDING] = rest
    return roles


def _assigned(found: BufferAssignment) -> Memory:
    memory = Memory(
        found.num_bytes("parameter"),
        found.num_bytes("output"),
        found.alias_bytes,
        found.num_bytes("temporary"),
        0,
        0,
    )
    return replace(memory, peak_bytes=memory.total_bytes)


def _estimated(guess: MemoryEstimate) -> Memory:
    return Memory(
        guess.argument_bytes,
        guess.output_bytes,
        guess.alias_bytes,
        guess.temp_bytes,
        0,
        guess.peak_bytes,
    )


def _alive(
    module: Module, found: BufferAssignment, platform: Platform
) -> tuple[PeakBuffer, ...]:
    if not any(found.temporaries):
        return ()
    schedule = _Schedule(module, platform)
    alive = alive_at_peak(found, schedule)
    buffers = (_buffer(schedule, value) for value in alive)
    return tuple(b for b in buffers if b is not None)


class _Schedule:
    """Lives of the values that an assignment names."""

    def __init__(self, module: Module, platform: Platform) -> None:
        rules = InPlace(module, reduces_in_place=platform != "cpu")
        self._found = lives(module, rules).by_value

    def life(self, value: Placed) -> Life | None:
        return self._found.get((value.name, value.index))

    def __call__(self, value: Placed) -> tuple[int, int] | None:
        life = self.life(value)
        return None if life is None else (life.start, life.end)


def _guessed(guess: MemoryEstimate) -> tuple[PeakBuffer, ...]:
    return tuple(_described(life, life.num_bytes) for life in guess.at_peak)


def _buffer(schedule: _Schedule, value: Placed) -> PeakBuffer | None:
    """None for a tuple's table of pointers, which is nobody's tensor."""
    life = schedule.life(value)
    if life is None:
        return PeakBuffer(value.name, value.num_bytes, "", "", "", "")
    return None if life.shape.is_tuple else _described(life, value.num_bytes)


def _described(life: Life, num_bytes: int) -> PeakBuffer:
    op_name = life.instruction.metadata.op_name
    scope = parse_op_name(op_name)
    module = scope.module
    if not module and life.reader is not None:
        # A collective of many tensors is from no one module; who reads this one is.
        module = parse_op_name(life.reader.metadata.op_name).module
    return PeakBuffer(
        life.instruction.name,
        num_bytes,
        str(life.shape),
        op_name,
        module,
        scope.phase,
    )
