"""`StepOps`: the operations of a traced step, before any compiler has seen them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from profiling._hlo.op_name import Scope, parse_op_name
from profiling._step.walk import ARGUMENT, HELD, Walked
from spmd._program.program import Program

_PLACED = "Sharding"
_PASSING = frozenset(
    ("transpose", "convert", "reshape", "reverse", "optimization_barrier", HELD)
)
_CUTTING = ("dynamic_slice", "slice")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(:\d+)?')


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepOp:
    """One operation, or an argument; compared by identity.

    Attributes:
        number: Its place; arguments come first.
        name: Such as ``dot``; ``argument`` for one.
        operands: What it reads.
        shape: Of the whole result.
        dtype: StableHLO's name, e.g. ``bf16``.
        scope: Phase, module and framework operation.
        op_name: What `scope` was read from.
        file: Source file with its folders; empty if unknown.
        line: Line in it; 0 if unknown.
        sharding: XLA's text, of an annotation; else empty.
        contracted: Of a dot, dims of the left and of the right that it sums over.
        batched: Of a dot, dims of the left and of the right that run side by side.
        convolved: Of a convolution, dims of the result that come from the left (its
            rows and its pixels) and from the right.
        in_loop: It stands in a loop, and so runs several times in a step.
    """

    number: int
    name: str
    operands: tuple[StepOp, ...]
    shape: tuple[int, ...]
    dtype: str
    scope: Scope
    op_name: str
    file: str
    line: int
    sharding: str = ""
    contracted: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    batched: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    convolved: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    in_loop: bool = False

    @property
    def source(self) -> str:
        """``file:line`` without folders; empty if unknown."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else ""

    @property
    def is_dot(self) -> bool:
        """It is a matmul or a convolution."""
        return self.name in ("dot", "dot_general", "convolution")

    @property
    def passes(self) -> bool:
        """Its result is its operand, element by element, in another form."""
        return bool(self.sharding) or self.name in _PASSING

    @property
    def free(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of a dot, dims of the result that come from the left and from the right."""
        if self.name == "convolution":
            return self.convolved
        left, right = (
            len(o.shape) - len(c) - len(b)
            for o, c, b in zip(
                self.operands, self.contracted, self.batched, strict=True
            )
        )
        first = len(self.batched[0])
        return (
            tuple(range(first, first + left)),
            tuple(range(first + left, first + left + right)),
        )

    def __repr__(self) -> str:
        return f"StepOp({self.number} = {self.name} {list(self.shape)} {self.op_name})"


class StepOps:
    """The operations of a program's step.

    Args:
        program: The program; its module is parsed once.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops: tuple[StepOp, ...] = tuple(_read(program.module))
        self.arguments = self.ops[: len(program.inputs)]
        self._users: dict[int, list[StepOp]] = {}
        for op in self.ops:
            for operand in dict.fromkeys(op.operands):
                self._users.setdefault(operand.number, []).append(op)

    def users(self, op: StepOp) -> list[StepOp]:
        """Who reads a value, in order.

        Args:
            op: What gives it.

        Returns:
            Operations.
        """
        return self._users.get(op.number, [])

    def behind(self, op: StepOp) -> StepOp:
        """What a value is before it was cast, transposed, reshaped or annotated.

        Args:
            op: What gives it.

        Returns:
            The operation or argument that computed it.
        """
        while op.passes and op.operands:
            op = op.operands[0]
        return op

    def input_behind(self, op: StepOp, roles: tuple[str, ...]) -> str:
        """Name of the input that a value is.

        Args:
            op: What gives it.
            roles: Roles that count; see `spmd.Value`.

        Returns:
            The name; empty if it is computed or of another role. In a loop over layers
            that of the stack, or the first layer's of those that are stacked there.
        """
        found = self._unscaled(op)
        if found.in_loop and found.name in _CUTTING:  # a layer's, of what was stacked
            found = self._unscaled(found.operands[0])
            while found.name == "concatenate":
                found = self._unscaled(found.operands[0])
        if found.name != ARGUMENT:
            return ""
        value = self.program.inputs[found.number]
        return value.name if value.role in roles else ""

    def _unscaled(self, op: StepOp) -> StepOp:
        """What is behind a value, also before it was multiplied by a number."""
        found = self.behind(op)
        while found.name == "multiply":
            values = [o for o in found.operands if not _is_number(o)]
            if len(values) != 1:
                break
            found = self.behind(values[0])
        return found

    def seen_through(self, op: StepOp) -> Iterator[StepOp]:
        """Who reads a value, also after it was cast, transposed or annotated.

        Args:
            op: What gives it.

        Yields:
            Operations that compute with it.
        """
        todo = list(reversed(self.users(op)))
        while todo:
            user = todo.pop()
            if user.passes:
                todo += reversed(self.users(user))
            else:
                yield user


def _is_number(op: StepOp) -> bool:
    """One number for all elements."""
    while op.name in ("broadcast_in_dim", "reshape", "convert"):
        op = op.operands[0]
    return not op.shape


def _read(module: bytes) -> list[StepOp]:
    from profiling._step.walk import walk
    from spmd._program.stablehlo import main_of, opened

    with opened(module) as parsed:
        return _Reader(walk(main_of(parsed))).ops


class _Reader:
    """Turns MLIR's operations into ours; they live as long as its context only."""

    def __init__(self, walked: Iterable[Walked]) -> None:
        self.ops: list[StepOp] = []
        self._locations: dict[str, tuple[str, str, int]] = {}
        for one in walked:
            self._add(one)

    def _add(self, one: Walked) -> None:
        operands = tuple(self.ops[number] for number in one.operands)
        name = one.name.removeprefix("stablehlo.")
        shape, dtype = _shape(None if one.value is None else one.value.type)
        extra: dict[str, Any] = {}
        if one.operation is not None:
            extra = _extra(name, one.operation.attributes, operands)
        if one.location not in self._locations:
            self._locations[one.location] = read_location(one.location)
        op_name, file, line = self._locations[one.location]
        made = StepOp(
            number=len(self.ops),
            name=name,
            operands=operands,
            shape=shape,
            dtype=dtype,
            scope=parse_op_name(op_name),
            op_name=op_name,
            file=file,
            line=line,
            in_loop=one.in_loop,
            **extra,
        )
        self.ops.append(made)


def _extra(name: str, attributes: Any, operands: tuple[StepOp, ...]) -> dict[str, Any]:
    """What an annotation or a matmul says besides."""
    if name == "custom_call" and attributes["call_target_name"].value == _PLACED:
        return {"sharding": attributes["mhlo.sharding"].value}
    if name == "dot":
        return {"contracted": ((len(operands[0].shape) - 1,), (0,))}
    if name == "dot_general":
        return _dims(attributes["dot_dimension_numbers"])
    if name == "convolution":
        return _convolved(attributes["dimension_numbers"])
    return {}


def read_location(text: str) -> tuple[str, str, int]:
    """The ``op_name`` and the source line of an MLIR location.

    Args:
        text: As MLIR writes it.

    Returns:
        ``op_name``, file and line; empty and 0 where it does not say.

    Example:
        >>> read_location('loc(fused["forward/up/mm", "/home/train.py":13:0])')
        ('forward/up/mm', '/home/train.py', 13)
    """
    op_name, file, line = "", "", 0
    for match in _STRING.finditer(text):
        if match[2] and not file:
            file, line = match[1], int(match[2][1:])
        elif not match[2]:
            op_name = op_name or match[1]
    return op_name, file, line


def _dims(attribute: Any) -> dict[str, Any]:
    from jax.extend.mlir.dialects import stablehlo

    dims = stablehlo.DotDimensionNumbers(attribute)
    return {
        "contracted": (
            tuple(dims.lhs_contracting_dimensions),
            tuple(dims.rhs_contracting_dimensions),
        ),
        "batched": (
            tuple(dims.lhs_batching_dimensions),
            tuple(dims.rhs_batching_dimensions),
        ),
    }


def _convolved(attribute: Any) -> dict[str, Any]:
    from jax.extend.mlir.dialects import stablehlo

    dims = stablehlo.ConvDimensionNumbers(attribute)
    rows = (dims.output_batch_dimension, *dims.output_spatial_dimensions)
    return {
        "contracted": (
            (dims.input_feature_dimension,),
            (
                dims.kernel_input_feature_dimension,
                *dims.kernel_spatial_dimensions,
            ),
        ),
        "convolved": (tuple(rows), (dims.output_feature_dimension,)),
    }


def _shape(kind: Any) -> tuple[tuple[int, ...], str]:
    """Sizes and element type out of ``tensor<4x8xbf16>``."""
    text = "" if kind is None else str(kind)
    if not text.startswith("tensor<"):
        return (), ""
    inner = text.removeprefix("tensor<").removesuffix(">").split(",")[0]
    *dims, dtype = inner.split("x")
    return tuple(int(d) if d.isdigit() else 0 for d in dims), dtype
