"""`Case`: a step and what a compiler made of it, as the finders look at it."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from profiling._collectives.collective import Collective, Role
from profiling._collectives.splits import Splits
from profiling._schedule import Schedule
from profiling._step.ops import StepOp, StepOps
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import entry_axes, spec_axes
from spmd._program.program import Program
from spmd._program.value import Value

WEIGHTS = ("parameter", "buffer")
_MOVING: tuple[Role, ...] = ("activation", "reshard", "input")


class Case:
    """A program with its schedule.

    Args:
        program: The traced step.
        schedule: What it was compiled to.

    Raises:
        ValueError: A program without a mesh, or a schedule of another program.
    """

    def __init__(self, program: Program, schedule: Schedule) -> None:
        if program.mesh is None:
            raise ValueError(
                f"program {program.name!r} is for one device: nothing moves; trace it "
                f"for a mesh"
            )
        compiled = schedule.compiled
        if compiled is not None and compiled.fingerprint != program.fingerprint:
            raise ValueError(
                f"schedule of program {compiled.fingerprint[:8]}, but the program "
                f"given is {program.fingerprint[:8]}; give the one it was compiled from"
            )
        self.program = program
        self.schedule = schedule
        self.mesh: Mesh = program.mesh
        self.values = {v.name: v for v in program.inputs}

    @cached_property
    def ops(self) -> StepOps:
        """The traced operations."""
        return StepOps(self.program)

    @cached_property
    def annotations(self) -> tuple[StepOp, ...]:
        """Annotations of the step, in order."""
        return tuple(op for op in self.ops.ops if op.sharding)

    @cached_property
    def splits(self) -> Splits:
        """How matmuls were split."""
        return Splits(self.ops, self.schedule)

    @cached_property
    def batch(self) -> tuple[Value, ...]:
        """Inputs that hold the batch."""
        return tuple(v for v in self.program.inputs if v.role == "input" and v.shape)

    @cached_property
    def data_axes(self) -> tuple[str, ...]:
        """Axes that split the first dim of most of the batch, as its specs say them."""
        found = Counter(entry_axes(v.spec[0]) for v in self.batch if v.spec)
        found.pop((), None)
        return found.most_common(1)[0][0] if found else ()

    @cached_property
    def weight_axes(self) -> frozenset[str]:
        """Axes that split weights."""
        return frozenset(
            axis
            for value in self.program.inputs
            if value.role == "parameter"
            for axis in spec_axes(value.spec or ())
        )

    @cached_property
    def fsdp_axes(self) -> tuple[str, ...]:
        """Axes that split both batch and weights: the weights are gathered for use."""
        return tuple(a for a in self.data_axes if a in self.weight_axes)

    @cached_property
    def forward_dots(self) -> tuple[tuple[StepOp, str], ...]:
        """Matmuls of the forward pass with a weight, and the weight's name."""
        found = []
        for op in self.ops.ops:
            if not op.is_dot or op.scope.phase not in ("forward", ""):
                continue
            names = [self.ops.input_behind(o, ("parameter",)) for o in op.operands]
            if any(names) and not all(names):
                found.append((op, next(n for n in names if n)))
        return tuple(found)

    @cached_property
    def moving(self) -> tuple[Collective, ...]:
        """Collectives that move activations or inputs, not numbers or weights."""
        return tuple(c for c in self.schedule.collectives if c.role in _MOVING)

    def size(self, axes: tuple[str, ...]) -> int:
        """Devices along some axes.

        Args:
            axes: Their names.

        Returns:
            The product of their sizes.
        """
        return self.mesh.axis_size(axes) if axes else 1

    def row_dims(self, op: StepOp) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Dims of a matmul's result that come from the activation, and of the weight.

        Args:
            op: One of `forward_dots`.

        Returns:
            Both; dims that run side by side count as the activation's.
        """
        left, right = op.free
        beside = tuple(range(len(op.batched[0])))
        on_left = bool(self.ops.input_behind(op.operands[0], ("parameter",)))
        rows, columns = (right, left) if on_left else (left, right)
        return (*beside, *rows), columns

    def activation_of(self, op: StepOp) -> StepOp:
        """The operand of a matmul that is no weight.

        Args:
            op: One of `forward_dots`.

        Returns:
            The operand.
        """
        on_left = bool(self.ops.input_behind(op.operands[0], ("parameter",)))
        return op.operands[1 if on_left else 0]
