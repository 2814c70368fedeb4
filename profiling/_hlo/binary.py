"""Read a serialised HLO module, one instruction at a time.

The big lists are left as bytes until their turn, so that what stays in memory is the
module and never the whole tree of protobuf messages. Nothing native but protobuf is
called: a damaged file is an error with its byte, never a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from profiling._hlo.damage import TextFault, in_bytes
from profiling._hlo.fields import FieldReader
from profiling._hlo.module import (
    MAIN_THREAD,
    Alias,
    Computation,
    Frame,
    Instruction,
    Module,
    interned,
)
from profiling._hlo.opcodes import check_opcode
from profiling._hlo.wire import Fields, WireFault, apart, fields, first_fault
from spmd._program.hlo_proto import ComputationParts, HloInstructionProto, ModuleParts

_SHARDING: dict[int, Any] = {}
_SHARDING[5] = _SHARDING
_SHAPE: dict[int, Any] = {5: {}}
_SHAPE[4] = _SHAPE
_INSTRUCTION: Fields = {3: _SHAPE, 7: {}, 8: {}, 30: {}, 40: _SHARDING, 68: {1: {}}}
_COMPUTATIONS, _INSTRUCTIONS = 3, 2  # numbers of the two big lists
_MUST_ALIAS = 2


def read_binary(data: bytes, *, source: str) -> Module:
    """Read a module.

    Args:
        data: `HloModuleProto`, `HloProto` or `HloSnapshot`, as XLA's dumps have them.
        source: What errors call it.

    Returns:
        The module.

    Raises:
        ValueError: Bytes that are no whole HLO module; says where.
    """
    try:
        start, end = _module_range(data)
        return _Reader(data, source).module(start, end)
    except WireFault as fault:
        raise in_bytes(source, fault.problem, offset=fault.at) from None


def _module_range(data: bytes) -> tuple[int, int]:
    """Where the module is.

    `HloSnapshot` holds an `HloProto`, which holds the module, each in field 1. A module
    has its name there; a wrapper has a message, whose first field is field 1 again.
    """
    start, end = 0, len(data)
    for _ in range(3):
        top = list(fields(data, start, end))
        if not top:
            raise WireFault("no HLO module: there is nothing here", start)
        number, wire, first, last = top[0]
        numbers = {number for number, *_ in top}
        is_message = number == 1 and wire == 2 and data[first : first + 1] == b"\n"
        if not is_message or numbers & {5, 6}:
            break
        start, end = first, last
    return start, end


class _Reader:
    def __init__(self, data: bytes, source: str) -> None:
        self.data = data
        self.source = source
        self.names: dict[int, str] = {}
        self.sequences: dict[int, Sequence[int]] = {}
        self.fields = FieldReader((), ())

    def module(self, start: int, end: int) -> Module:
        small, items = apart(self.data, start, end, _COMPUTATIONS)
        parts = _parsed(ModuleParts, small, start)
        frames = _frames(parts.stack_frame_index)
        self.fields = FieldReader(frames, parts.payloads)
        self.sequences = {
            entry.key: entry.value.instruction_ids for entry in parts.schedule.sequences
        }
        computations = tuple([self._computation(first, last) for first, last in items])
        entry = next(
            (c for c in computations if c.id == parts.entry_computation_id), None
        )
        if entry is None:
            raise WireFault(
                f"no HLO module, or a part of one: it has {len(computations)} "
                f"computations and none with the id of its entry, "
                f"{parts.entry_computation_id}",
                start,
            )
        assigned = parts.device_assignment
        return Module(
            parts.name,
            computations,
            entry,
            bool(self.sequences),
            tuple(
                Alias(
                    tuple(e.output_shape_index),
                    e.parameter_number,
                    tuple(e.parameter_shape_index),
                    e.kind == _MUST_ALIAS,
                )
                for e in parts.input_output_alias.entries
            ),
            tuple(
                (e.parameter_number, tuple(e.parameter_shape_index))
                for e in parts.buffer_donor.entries
            ),
            assigned.computation_count or self.fields.num_devices,
            assigned.replica_count or 1,
            frames,
            tuple(sorted((e.key, e.value) for e in parts.frontend_attributes.map)),
            self.source,
        )

    def _computation(self, start: int, end: int) -> Computation:
        small, items = apart(self.data, start, end, _INSTRUCTIONS)
        parts = _parsed(ComputationParts, small, start)
        found: dict[int, Instruction] = {}
        for first, last in items:
            instruction = self._instruction(first, last, found, parts.name)
            found[instruction.id] = instruction
        if parts.root_id not in found:
            raise WireFault(
                f"computation {parts.name!r} has no instruction with the id of its "
                f"root, {parts.root_id}",
                start,
            )
        if parts.id in self.names or not parts.name:
            raise WireFault(f"a second computation of the id {parts.id}", start)
        self.names[parts.id] = interned(parts.name)
        return Computation(
            self.names[parts.id],
            self._ordered(parts, found, start),
            found[parts.root_id],
            parts.execution_thread or MAIN_THREAD,
            parts.id,
        )

    def _ordered(
        self, parts: Any, found: dict[int, Instruction], start: int
    ) -> tuple[Instruction, ...]:
        sequence = self.sequences.get(parts.id)
        if sequence is None:
            return tuple(found.values())
        if set(sequence) != set(found) or len(sequence) != len(found):
            raise WireFault(
                f"the schedule of computation {parts.name!r} does not list its "
                f"{len(found)} instructions once each",
                start,
            )
        return tuple([found[i] for i in sequence])

    def _instruction(
        self, start: int, end: int, known: dict[int, Instruction], computation: str
    ) -> Instruction:
        message = _parsed(HloInstructionProto, self.data[start:end], start)
        name = message.name
        if not name or not message.opcode or message.id in known:
            raise WireFault(
                f"an instruction of {computation!r} without a name, an opcode or an id "
                f"of its own",
                start,
            )
        try:
            check_opcode(message.opcode, 0)
            return Instruction(
                name,
                interned(message.opcode),
                self.fields.shape(message),
                tuple([known[i] for i in message.operand_ids]),
                tuple([self.names[i] for i in message.called_computation_ids]),
                self.fields.metadata(message),
                self.fields.attributes(message, known),
                message.id,
            )
        except KeyError as error:
            problem = f"it names {error.args[0]}, which does not come before it"
        except TextFault as fault:
            problem = fault.problem
        raise WireFault(f"instruction {name!r} of {computation!r}: {problem}", start)


def _parsed(kind: Any, data: bytes, start: int) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        is_instruction = kind is HloInstructionProto
        fault = first_fault(data, _INSTRUCTION) if is_instruction else None
        if fault is not None:
            raise WireFault(fault.problem, start + fault.at) from None
    raise WireFault(
        "a message that XLA would not write, or a name that is no UTF-8", start
    )


def _frames(index: Any) -> tuple[Frame, ...]:
    files, functions = list(index.file_names), list(index.function_names)
    found = []
    for frame in index.stack_frames:
        place = frame.file_location_id - 1
        if 0 <= place < len(index.file_locations):
            where = index.file_locations[place]
            file = _row(files, where.file_name_id)
            function = _row(functions, where.function_name_id)
            line = where.line
        else:
            file, function, line = "", "", 0
        found.append(Frame(file, function, line, frame.parent_frame_id - 1))
    return tuple(found)


def _row(rows: list[str], number: int) -> str:
    return rows[number - 1] if 0 < number <= len(rows) else ""
