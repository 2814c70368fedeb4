"""`of_all_slices`: the module of one TPU slice as that of every device.

For several slices libtpu compiles the program of one. What its devices do among
themselves stays a collective; what goes to other slices becomes a `send` and a `recv`
that hand over to the runtime on the hosts (MegaScale), which says what it does in
frontend attributes: ``_xla_megascale_transfer_type="ALL_REDUCE"``, and with whom:
``_xla_megascale_target="{1,2}x{0:3}"``, each device of 0 to 3 with its like in slices 1
and 2, or listed, ``{{100000,200000},...}``, slice 1's device 0 with slice 2's. Seen in
what libtpu 0.0.42.1 writes; it is documented nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from profiling._hlo.device_groups import DeviceGroups, iota
from profiling._hlo.module import (
    NO_METADATA,
    Computation,
    Instruction,
    Metadata,
    Module,
)
from profiling._hlo.opcodes import COLLECTIVES
from profiling._hlo.shape import Shape

_TYPE = "_xla_megascale_transfer_type"
_TARGET = "_xla_megascale_target"
_MEETING = "_xla_host_transfer_rendezvous"
_PRODUCT = re.compile(r"\{(\d+(?:,\d+)*)\}x\{(\d+):(\d+)\}")
_PER_SLICE = 100_000  # device 3 of slice 2 is 200003
_KINDS = {kind.upper().replace("-", "_"): kind for kind in COLLECTIVES}
_NOTHING = "after-all"  # an instruction that does nothing


def of_all_slices(module: Module, *, num_devices: int, num_slices: int) -> Module:
    """Have the groups of collectives count the devices of all slices.

    Args:
        module: For one slice, or for all, which is left as it is.
        num_devices: Of all slices.
        num_slices: How many there are.

    Returns:
        A module for `num_devices`, whose transfers to other slices are collectives
        with a start and a done each.

    Raises:
        ValueError: A transfer to other slices that is no known collective, or whose
            devices are written in an unknown way.
    """
    own = module.num_partitions * module.num_replicas
    if num_slices < 2 or own * num_slices != num_devices:
        return module
    computations = {c: _lifted(c, own, num_slices) for c in module.computations}
    return replace(
        module,
        computations=tuple(computations.values()),
        entry=computations[module.entry],
        num_partitions=module.num_partitions * num_slices,
    )


def _lifted(computation: Computation, own: int, num_slices: int) -> Computation:
    sends = {
        _said(i)[_MEETING]: i for i in computation.instructions if _is_one(i, "send")
    }
    gives = {
        _said(i)[_MEETING]: i.shape.elements[0]
        for i in computation.instructions
        if _is_one(i, "recv")
    }
    new: dict[Instruction, Instruction] = {}
    for instruction in computation.instructions:
        operands = tuple(new[o] for o in instruction.operands)
        if _is_one(instruction, "send"):
            shape = gives[_said(instruction)[_MEETING]]
            new[instruction] = _start(instruction, operands[0], shape, own)
        else:
            new[instruction] = _rewritten(instruction, operands, sends, new)
        found = new[instruction]
        if found.opcode.removesuffix("-start") in COLLECTIVES and (
            found.opcode == instruction.opcode
        ):
            new[instruction] = _in_each_slice(found, own, num_slices)
    if all(before is after for before, after in new.items()):
        return computation
    return replace(
        computation,
        instructions=tuple(new.values()),
        root=new[computation.root],
    )


def _rewritten(
    instruction: Instruction,
    operands: tuple[Instruction, ...],
    sends: Mapping[str, Instruction],
    new: Mapping[Instruction, Instruction],
) -> Instruction:
    """What an instruction is in the module of all slices, its groups aside."""
    first = instruction.operands[0] if instruction.operands else None
    if _is_one(instruction, "recv") or _ends(instruction, "send"):
        return replace(instruction, opcode=_NOTHING, operands=())
    if _ends(instruction, "recv"):
        assert first is not None
        send = new[sends[_said(first)[_MEETING]]]
        opcode = send.opcode.replace("-start", "-done")
        shape = instruction.shape.elements[0]
        return replace(instruction, opcode=opcode, operands=(send,), shape=shape)
    if instruction.opcode == "get-tuple-element" and first and _ends(first, "recv"):
        if instruction.attributes.tuple_index == 0:
            return replace(instruction, opcode="bitcast", operands=operands)
        return replace(instruction, opcode=_NOTHING, operands=())
    if all(a is b for a, b in zip(operands, instruction.operands, strict=True)):
        return instruction
    return replace(instruction, operands=operands)


def _start(send: Instruction, data: Instruction, gives: Shape, own: int) -> Instruction:
    """The start of a collective, of the shape that starts of its kind have."""
    said = _said(send)
    kind = _KINDS.get(said[_TYPE])
    if kind is None:
        raise ValueError(
            f"{send.name} goes to other slices as {said[_TYPE]!r}, which is none of "
            f"the transfers that are known here: {', '.join(_KINDS)}"
        )
    groups = _groups(send, said.get(_TARGET, ""), own)
    attributes = replace(send.attributes, groups=groups, global_ids=True)
    shape = gives
    if kind != "all-reduce":
        shape = Shape("tuple", elements=(data.shape, gives))
    return replace(
        send,
        opcode=f"{kind}-start",
        operands=(data,),
        shape=shape,
        attributes=attributes,
        metadata=_origin(send, data),
    )


def _origin(send: Instruction, data: Instruction) -> Metadata:
    """Where a transfer comes from: libtpu leaves it to what computes the data."""
    found, at = send.metadata, data
    while not found.op_name:
        found = at.metadata
        if not at.operands:
            break
        at = at.operands[0]
    return found if found.op_name else NO_METADATA


def _groups(send: Instruction, text: str, own: int) -> DeviceGroups:
    if match := _PRODUCT.fullmatch(text.strip('"')):
        slices = [int(n) for n in match[1].split(",")]
        devices = range(int(match[2]), int(match[3]) + 1)
        return DeviceGroups(
            tuple(tuple((s - 1) * own + d for s in slices) for d in devices)
        )
    try:
        listed = DeviceGroups.parse(text).listed
    except ValueError:
        listed = ()
    if not listed or any(
        n < _PER_SLICE or n % _PER_SLICE >= own for g in listed for n in g
    ):
        raise ValueError(
            f"{send.name} goes to other slices, to the devices {text!r}; written like "
            f"{{1,2}}x{{0:3}} or {{{{100000,200000}}}} they can be read here"
        )
    return DeviceGroups(
        tuple(
            tuple((n // _PER_SLICE - 1) * own + n % _PER_SLICE for n in group)
            for group in listed
        )
    )


def _in_each_slice(instruction: Instruction, own: int, num_slices: int) -> Instruction:
    """The same among the devices of every slice."""
    attributes = instruction.attributes
    pairs = tuple(
        (s * own + a, s * own + b)
        for s in range(num_slices)
        for a, b in attributes.pairs
    )
    groups = attributes.groups
    if not pairs:
        groups = _repeated(groups or DeviceGroups(), own, num_slices)
    return replace(
        instruction, attributes=replace(attributes, groups=groups, pairs=pairs)
    )


def _repeated(groups: DeviceGroups, own: int, num_slices: int) -> DeviceGroups:
    if groups.is_all:
        return iota((num_slices, own), (num_slices, own))
    if groups.reshape_dims:
        dims = groups.reshape_dims
        perm = groups.transpose_perm or tuple(range(len(dims)))
        counts = (num_slices * own // groups.group_size, groups.group_size)
        return iota(counts, (num_slices, *dims), (0, *(p + 1 for p in perm)))
    return DeviceGroups(
        tuple(
            tuple(s * own + n for n in group)
            for s in range(num_slices)
            for group in groups.listed
        )
    )


def _is_one(instruction: Instruction, opcode: str) -> bool:
    return instruction.opcode == opcode and _TYPE in _said(instruction)


def _ends(instruction: Instruction, opcode: str) -> bool:
    done = instruction.opcode == f"{opcode}-done"
    return done and _is_one(instruction.operands[0], opcode)


def _said(instruction: Instruction) -> dict[str, str]:
    return dict(instruction.attributes.frontend_attributes)
