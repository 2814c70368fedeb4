"""Where each collective of a module starts and ends.

Four forms: one instruction; an `x-start` and its `x-done`; a computation wrapped in
`async-start` and `async-done`, on a TPU's sparse cores by way of a `call` (which text
has as `call-start` and `call-done`); and a TPU's async collective fusions, where one
transfer appears in several fused computations, first with a custom call
`AsyncCollectiveStart`, last with `AsyncCollectiveDone`, and in between as steps of
other fusions, all on one channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from profiling._hlo.module import Computation, Instruction, Module
from profiling._hlo.opcodes import COLLECTIVES

_START, _DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
_ASYNC = frozenset(("async-start", "call-start"))
_PASSES = frozenset(
    ("get-tuple-element", "bitcast", "copy", "reshape", "transpose", "convert")
)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One collective and its place.

    Attributes:
        kind: Opcode without ``-start``.
        instruction: What says groups and metadata.
        inner: The computation it is in.
        start: The instruction of `computation` that starts it.
        done: The one that ends it; None if it is not in `computation`. A synchronous
            one ends where it starts.
        computation: The computation whose order says when it runs.
    """

    kind: str
    instruction: Instruction
    inner: Computation
    start: Instruction
    done: Instruction | None
    computation: Computation

    @property
    def is_split(self) -> bool:
        """Whether it has a start and a done of its own."""
        return self.done is not self.start

    @property
    def result(self) -> Instruction:
        """The instruction whose value is the collective's result."""
        if self.inner is self.computation and self.done is not None:
            return self.done
        return self.instruction


Users = Mapping[Instruction, list[Instruction]]


def collective_kind(opcode: str) -> str:
    """The collective that an opcode does or starts.

    Args:
        opcode: Of an instruction.

    Returns:
        Its kind; empty for any other opcode.

    Example:
        >>> collective_kind("all-gather-start"), collective_kind("all-gather-done")
        ('all-gather', '')
    """
    kind = opcode.removesuffix("-start")
    return kind if kind in _KINDS else ""


_KINDS = frozenset(COLLECTIVES)


def find(module: Module) -> Iterator[tuple[Found, Users]]:
    """Find every collective once.

    Args:
        module: Any module.

    Yields:
        What was found, and who reads collectives and what passes them on in `inner`.
    """
    holders = _holders(module)
    readers = _Readers()
    chains = _Chains()
    found: list[tuple[Found, Users]] = []
    for computation in module.computations:
        mine = [i for i in computation.instructions if collective_kind(i.opcode)]
        if not mine:
            continue
        users = readers(computation)
        holder = holders.get(computation.name)
        for instruction in mine:
            place = _place(instruction, computation, readers, holders)
            if not chains.takes(place, users, holder):
                found.append((place, users))
    yield from found
    yield from chains.joined()


@dataclass(frozen=True, slots=True)
class _Holder:
    """The instruction that runs a fused or wrapped computation, and where it is."""

    instruction: Instruction
    computation: Computation
    done: Instruction | None = None


def _holders(module: Module) -> dict[str, _Holder]:
    found: dict[str, _Holder] = {}
    calls: list[_Holder] = []
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "fusion" or instruction.opcode in _ASYNC:
                for name in instruction.called:
                    found[name] = _Holder(instruction, computation)
            elif instruction.opcode == "call":
                calls.append(_Holder(instruction, computation))
    for call in calls:  # one that is not wrapped runs what it holds
        wrapper = found.get(call.computation.name)
        if wrapper is not None and wrapper.instruction.opcode in _ASYNC:
            found.update(dict.fromkeys(call.instruction.called, wrapper))
    return found


def _place(
    instruction: Instruction,
    computation: Computation,
    readers: _Readers,
    holders: Mapping[str, _Holder],
) -> Found:
    kind = collective_kind(instruction.opcode)
    holder = holders.get(computation.name)
    if holder is None:
        is_start = instruction.opcode.endswith("-start")
        done = _done(instruction, readers(computation)) if is_start else instruction
        return Found(kind, instruction, computation, instruction, done, computation)
    outer = holder
    while outer.instruction.opcode == "fusion" and outer.computation.name in holders:
        outer = holders[outer.computation.name]
    done = outer.instruction
    if done.opcode in _ASYNC:
        done = _done(done, readers(outer.computation))
    return Found(
        kind, instruction, computation, outer.instruction, done, outer.computation
    )


class _Readers:
    """`_users` of each computation, built once."""

    def __init__(self) -> None:
        self._known: dict[str, Users] = {}

    def __call__(self, computation: Computation) -> Users:
        if computation.name not in self._known:
            self._known[computation.name] = _users(computation)
        return self._known[computation.name]


def _users(computation: Computation) -> dict[Instruction, list[Instruction]]:
    """Users of collectives, of their ends, and of what only passes a value on."""
    found: dict[Instruction, list[Instruction]] = {}
    for instruction in computation.instructions:
        for operand in instruction.operands:
            opcode = operand.opcode
            if (
                opcode in _PASSES
                or opcode.startswith(("async-", "call-"))
                or opcode.removesuffix("-done").removesuffix("-start") in _KINDS
            ):
                found.setdefault(operand, []).append(instruction)
    return found


def _done(start: Instruction, users: Users) -> Instruction | None:
    """The end of a start, through updates; None where it leaves the computation."""
    at = start
    while True:
        after = [
            u
            for u in users.get(at, ())
            if u.opcode.endswith(("-done", "-update")) and u.operands[0] is at
        ]
        if not after:
            return None
        if after[0].opcode.endswith("-done"):
            return after[0]
        at = after[0]


class _Chains:
    """Joins the parts of a TPU's async collective fusions."""

    def __init__(self) -> None:
        self.starts: dict[tuple[int, str], list[tuple[Found, Users]]] = {}
        self.ends: dict[tuple[int, str], list[Found]] = {}
        self.steps: list[tuple[Found, Users]] = []

    def takes(self, place: Found, users: Users, holder: _Holder | None) -> bool:
        """Whether this is a part of a chain, which is then kept."""
        if holder is None or holder.instruction.opcode != "fusion":
            return False
        key = (place.instruction.attributes.channel, place.kind)
        targets = {
            i.attributes.custom_call_target
            for i in place.inner.instructions
            if i.opcode == "custom-call" and place.instruction in i.operands
        }
        if _START in targets:
            self.starts.setdefault(key, []).append((place, users))
        elif _DONE in targets:
            self.ends.setdefault(key, []).append(place)
        else:
            self.steps.append((place, users))
        return True

    def joined(self) -> Iterator[tuple[Found, Users]]:
        """Yield each chain as one, and fused collectives that are in none."""
        for key, starts in self.starts.items():
            ends = self.ends.get(key, [])
            for i, (first, users) in enumerate(starts):
                done = ends[i].start if i < len(ends) else None
                if done is not None and ends[i].computation is not first.computation:
                    done = None
                yield (
                    Found(
                        first.kind,
                        first.instruction,
                        first.inner,
                        first.start,
                        done,
                        first.computation,
                    ),
                    users,
                )
        for step, users in self.steps:
            if (step.instruction.attributes.channel, step.kind) not in self.starts:
                yield step, users
