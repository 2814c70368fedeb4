"""`Told`: what metadata tells of an array that a collective moves.

A collective has the metadata of the operation that needed it, until the compiler joins
several into one: then the parts of its result, what made an operand or who reads a
result have to tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from profiling._collectives.ops import CollectiveOp
from profiling._hlo.module import Instruction, Metadata, Module
from profiling._hlo.op_name import Scope, parse_op_name

_PASSING = frozenset(("get-tuple-element", "bitcast", "copy", "convert", "reshape"))
_MOST_HOPS = 4


class Told:
    """Looks up scopes and source lines.

    Args:
        module: The final module of one device.
        parameters: Names of the step's parameters; their modules are known by them.
    """

    def __init__(self, module: Module, parameters: Iterable[str]) -> None:
        self._module = module
        self._owners = {owner for p in parameters if (owner := _owner(p))}
        self._users: dict[str, dict[Instruction, list[Instruction]]] = {}
        self._lines: dict[tuple[str, str], str] | None = None

    def scope(
        self,
        op: CollectiveOp,
        number: int,
        array: Instruction,
        producer: Instruction | None,
    ) -> tuple[Scope, str]:
        """Where an array is needed.

        Args:
            op: The collective.
            number: Of the operand.
            array: The operand, or the part of it that is asked about.
            producer: What computed the operand; None if it is an input.

        Returns:
            The scope, and ``file:line``; empty where nothing tells.
        """
        first: tuple[Scope, str] = (Scope(), line_of(op.instruction.metadata))
        for metadata in self._metadata(op, number, array, producer):
            if not metadata.op_name:
                continue
            told = parse_op_name(metadata.op_name), line_of(metadata)
            if told[0].phase:
                return told
            if first[0] == Scope():
                first = told
        return first

    def of_tensor(self, scope: Scope, line: str, tensor: str) -> tuple[Scope, str]:
        """Put right what is told of a parameter.

        The compiler joins matmuls that read the same value: what feeds a gate and an up
        projection then says only the gate. A module that has no parameter of its own,
        as a tied head, is right.

        Args:
            scope: What is told.
            line: With it.
            tensor: The parameter's name.

        Returns:
            The scope with the parameter's own module where another one's is told.
        """
        owner, told = _owner(tensor), scope.module
        if not owner or owner not in self._owners or told == owner:
            return scope, line
        is_inside = owner.startswith(f"{told}.") or not told
        if told not in self._owners and not is_inside:
            return scope, line
        line = self._line(scope.phase, owner) or line
        return Scope(scope.phase, owner, scope.operation), line

    def _metadata(
        self,
        op: CollectiveOp,
        number: int,
        array: Instruction,
        producer: Instruction | None,
    ) -> Iterator[Metadata]:
        """Best first."""
        instruction = op.instruction
        is_alone = instruction.operands == (array,)
        readers: list[Instruction] = []
        if is_alone:
            yield instruction.metadata
        else:
            readers = self._readers(op, number)
            yield from (r.metadata for r in readers if r.opcode == "get-tuple-element")
        if producer is not None:
            yield array.metadata
            yield producer.metadata
        yield from (r.metadata for r in readers or self._readers(op, number))
        yield instruction.metadata
        if producer is not None:  # one that the compiler remade says nothing itself
            yield from (o.metadata for o in producer.operands)

    def _readers(self, op: CollectiveOp, number: int) -> list[Instruction]:
        """Who reads a result, also behind what only passes it on."""
        if op.done is None:
            return []
        if op.computation not in self._users:
            computation = self._module.computation(op.computation)
            self._users[op.computation] = computation.users()
        users, end, found = self._users[op.computation], op.done, []
        level = users.get(end, [])
        if end.shape.is_tuple:
            level = [u for u in level if u.attributes.tuple_index == number]
        for _ in range(_MOST_HOPS):
            found += level
            level = [r for u in level if u.opcode in _PASSING for r in users.get(u, [])]
        return found

    def _line(self, phase: str, module: str) -> str:
        """A line of a module; looked up once for all modules."""
        if self._lines is None:
            self._lines = {}
            for instruction in self._module.instructions():
                metadata = instruction.metadata
                if metadata.source_file and metadata.op_name:
                    scope = parse_op_name(metadata.op_name)
                    key = scope.phase, scope.module
                    self._lines.setdefault(key, line_of(metadata))
        return self._lines.get((phase, module), "")


def line_of(metadata: Metadata) -> str:
    """Source file and line.

    Args:
        metadata: Of an instruction.

    Returns:
        ``file:line``; empty if unknown.
    """
    if not metadata.source_line:
        return metadata.source_file
    return f"{metadata.source_file}:{metadata.source_line}"


def _owner(parameter: str) -> str:
    """Path of the module that a parameter belongs to; XLA's ``param.3`` has none."""
    module, _, name = parameter.rpartition(".")
    return "" if name.isdigit() else module
