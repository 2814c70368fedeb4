"""Bytes that an instruction reads and writes in the device's memories.

A fusion reads what its body takes from its parameters: of a slice, a dynamic slice or a
gather only what comes out. An update in place writes what it updates. A buffer in a
TPU's vector memory (layout ``S(1)``) is counted apart, one in its scalar memories or a
semaphore not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiling._collectives.async_pairs import collective_kind
from profiling._hlo.module import Computation, Instruction, Module
from profiling._hlo.shape import Shape
from profiling._timeline.efficiency import SECTOR_BYTES

_FAST = 1  # TPU's vector memory
_MEMORIES = frozenset((0, 5))  # the device's, and the host's
_TAKES_PART = frozenset(("slice", "dynamic-slice", "gather"))
_SAME = frozenset(("bitcast", "reshape", "copy", "convert"))
_UPDATES = {"dynamic-update-slice": 1, "scatter": -1}  # operand that is the update
_Users = Mapping[Instruction, list[Instruction]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one execution.

    Attributes:
        memory: In the device's main memory.
        fast: In a TPU's vector memory.
    """

    memory: float = 0.0
    fast: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.memory + other.memory, self.fast + other.fast)


def traffic(module: Module, instruction: Instruction, *, sectors: bool) -> Traffic:
    """Bytes that one execution reads and writes.

    Args:
        module: Where it is.
        instruction: Any that does its work itself or in a fusion's body.
        sectors: Memory is read in sectors of `SECTOR_BYTES`, as a GPU does where
            neighbouring threads do not read neighbouring elements.

    Returns:
        The bytes; none for collectives, whose time is that of their link.
    """
    if instruction.opcode == "fusion" and instruction.called:
        return _fusion(module, instruction, sectors)
    if collective_kind(instruction.opcode):
        return Traffic()
    if instruction.opcode in _TAKES_PART:
        taken = instruction.shape.num_bytes
        read = _in(instruction.operands[0].shape, taken)
        return read + _in(instruction.shape, taken)
    if (at := _UPDATES.get(instruction.opcode)) is not None:
        return _in(instruction.shape, 2 * instruction.operands[at].shape.num_bytes)
    shape = instruction.shape
    if instruction.opcode == "custom-call" and shape.is_tuple:
        # cuBLAS and cuDNN give their scratch space, bytes, as the last element.
        shape = Shape("tuple", elements=tuple(e for e in shape.elements if _counts(e)))
    found = _whole(shape)
    for operand in instruction.operands:
        found += _whole(operand.shape)
    return found


def _fusion(module: Module, instruction: Instruction, sectors: bool) -> Traffic:
    body = module.computation(instruction.called[0])
    users = body.users()
    strided = sectors and instruction.attributes.fusion_kind == "kLoop"
    found = Traffic()
    for parameter in body.parameters:
        number = parameter.attributes.parameter
        if number >= len(instruction.operands):
            continue
        shape = instruction.operands[number].shape
        if shape.is_tuple:
            found += _whole(shape)
        elif _memory_of(shape):
            found += _in(shape, _read(module, parameter, users, body, strided))
    leaves = instruction.shape.elements or (instruction.shape,)
    roots = body.root.operands if body.root.opcode == "tuple" else (body.root,)
    for leaf, root in zip(leaves, roots, strict=False):
        found += _whole(leaf) if leaf.is_tuple else _in(leaf, _written(root))
    return found


def _read(
    module: Module, value: Instruction, users: _Users, body: Computation, strided: bool
) -> float:
    """Bytes of a value that a body reads, each place once."""
    whole = most = float(value.shape.num_bytes)
    total = 0.0
    for user in users.get(value, ()):
        first = bool(user.operands) and user.operands[0] is value
        if user.opcode in _TAKES_PART and first:
            total += user.shape.num_bytes
        elif user.opcode in _UPDATES and first:
            updated = user.operands[-1].shape.num_bytes
            total += updated if user.opcode == "scatter" else 0
        elif user.opcode in _SAME and (user is not body.root):
            passed = _read(module, user, users, body, strided)
            most = max(most, passed)
            total += passed
        elif user.opcode == "tuple" or collective_kind(user.opcode):
            continue
        elif user.opcode == "fusion" and user.called:
            passed = _read_inside(module, value, user, strided)
            most = max(most, passed)
            total += passed
        elif user.opcode == "transpose" and strided and _jumps(user):
            most = max(most, float(value.shape.num_elements * SECTOR_BYTES))
            total += most
        else:
            total += whole
    return min(total, most)


def _read_inside(
    module: Module, value: Instruction, fusion: Instruction, strided: bool
) -> float:
    """What a fusion inside of a fusion reads of a value."""
    inner = module.computation(fusion.called[0])
    users = inner.users()
    return sum(
        _read(module, parameter, users, inner, strided)
        for parameter in inner.parameters
        if fusion.operands[parameter.attributes.parameter] is value
    )


def _written(root: Instruction) -> float:
    """Bytes that a body writes of a result."""
    while root.opcode == "bitcast" and root.operands:
        root = root.operands[0]
    if root.opcode in ("parameter", "get-tuple-element"):
        return 0.0  # handed through
    if collective_kind(root.opcode) or root.opcode == "custom-call":
        return 0.0
    if (at := _UPDATES.get(root.opcode)) is not None:
        return float(root.operands[at].shape.num_bytes)
    return float(root.shape.num_bytes)


def _jumps(transpose: Instruction) -> bool:
    """Whether neighbours in the result are not neighbours in the operand.

    Example: {1,0} of f32[64,32]{1,0} gives f32[32,64]{1,0}, whose neighbours along dim
    1 are 32 elements apart in the operand.
    """
    before, after = transpose.operands[0].shape, transpose.shape
    last = _minor(after)
    if last is None or not transpose.attributes.dimensions:
        return False
    return transpose.attributes.dimensions[last] != _minor(before)


def _minor(shape: Shape) -> int | None:
    """The dim along which neighbours in memory differ."""
    order = shape.minor_to_major or tuple(reversed(range(len(shape.dims))))
    return next((dim for dim in order if shape.dims[dim] > 1), None)


def _counts(shape: Shape) -> bool:
    return shape.is_tuple or shape.dtype not in ("s8", "u8") or len(shape.dims) > 1


def _whole(shape: Shape) -> Traffic:
    found = Traffic()
    for leaf in shape.leaves():
        found += _in(leaf, leaf.num_bytes)
    return found


def _in(shape: Shape, num_bytes: float) -> Traffic:
    shape = next(shape.leaves(), shape)
    if shape.memory_space == _FAST:
        return Traffic(fast=float(num_bytes))
    if shape.memory_space in _MEMORIES:
        return Traffic(memory=float(num_bytes))
    return Traffic()


def _memory_of(shape: Shape) -> bool:
    return shape.memory_space == _FAST or shape.memory_space in _MEMORIES
