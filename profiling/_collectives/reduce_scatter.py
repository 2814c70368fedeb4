"""All-reduces of which each device keeps only its own part: reduce-scatters.

The CPU compiler has no reduce-scatter: it all-reduces and slices. A TPU's does the same
inside one fusion, which then is a true reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Mapping

from profiling._hlo.module import Computation, Instruction, Module
from profiling._hlo.shape import Shape

_PASSES = frozenset(("bitcast", "copy", "reshape", "transpose", "convert"))
_IDS = ("partition-id", "replica-id")
_MOST = 256


def scattered_bytes(
    module: Module,
    computation: Computation,
    result: Instruction,
    users: Mapping[Instruction, list[Instruction]],
    num_devices: int,
) -> int | None:
    """Bytes each device keeps of an all-reduce, if it keeps one n-th.

    Every array of the result must go to dynamic-slices alone, each of one n-th of it,
    at a place that depends on which device this is.

    Args:
        module: Where it is.
        computation: Where in it.
        result: The all-reduce, or its done.
        users: Who reads it and what passes it on.
        num_devices: Devices in a group.

    Returns:
        Bytes of the kept parts; None for a plain all-reduce.
    """
    if num_devices < 2:
        return None
    if not result.shape.is_tuple:
        return _kept(module, computation, result, users, num_devices)
    kept = 0
    seen: set[int] = set()
    for user in users.get(result, ()):
        if user.opcode != "get-tuple-element":
            return None
        part = _kept(module, computation, user, users, num_devices)
        if part is None:
            return None
        if user.attributes.tuple_index not in seen:
            seen.add(user.attributes.tuple_index)
            kept += part
    return kept if len(seen) == len(result.shape.elements) else None


def _kept(
    module: Module,
    computation: Computation,
    value: Instruction,
    users: Mapping[Instruction, list[Instruction]],
    num_devices: int,
) -> int | None:
    wanted = value.shape.num_elements
    todo, sizes = [value], []
    while todo:
        at = todo.pop()
        readers = users.get(at, [])
        if not readers or len(sizes) + len(todo) > _MOST:
            return None
        for reader in readers:
            if reader.opcode in _PASSES:
                todo.append(reader)
            elif reader.opcode == "dynamic-slice" and reader.operands[0] is at:
                if not _by_device(reader.operands[1:]):
                    return None
                sizes.append(reader.shape)
            elif reader.opcode == "fusion":
                inner = _sliced_inside(module, reader, at)
                if inner is None:
                    return None
                sizes += inner
            else:
                return None
    if any(shape.num_elements * num_devices != wanted for shape in sizes):
        return None
    return sizes[0].num_bytes if sizes else None


def _sliced_inside(
    module: Module, fusion: Instruction, value: Instruction
) -> list[Shape] | None:
    """Shapes of the slices a fusion takes of an operand, if it takes only those."""
    body = module.computation(fusion.called[0])
    numbers = {n for n, operand in enumerate(fusion.operands) if operand is value}
    sources = [p for p in body.parameters if p.attributes.parameter in numbers]
    passed, shapes = set(sources), []
    for instruction in body.instructions:
        if not any(operand in passed for operand in instruction.operands):
            continue
        if instruction.opcode in _PASSES:
            passed.add(instruction)
        elif instruction.opcode == "dynamic-slice" and (
            instruction.operands[0] in passed
        ):
            if not _by_device(instruction.operands[1:], fusion):
                return None
            shapes.append(instruction.shape)
        else:
            return None
    return shapes if shapes and body.root not in passed else None


def _by_device(
    indices: tuple[Instruction, ...], fusion: Instruction | None = None
) -> bool:
    """Whether an index depends on the device, or may, as a parameter can hold it."""
    todo, seen = list(indices), set()
    numbers: set[int] = set()
    while todo and len(seen) < _MOST:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        if at.opcode in _IDS:
            return True
        if at.opcode == "parameter":
            numbers.add(at.attributes.parameter)
        todo.extend(at.operands)
    if fusion is None or not numbers:
        return bool(numbers)
    outside = [o for n, o in enumerate(fusion.operands) if n in numbers]
    return _by_device(tuple(outside))
