"""`OpNames`: what operations are, by their name and by their program's HLO."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from profiling._collectives.async_pairs import collective_kind
from profiling._collectives.collectives import names_of
from profiling._collectives.ops import CollectiveOp, collective_ops
from profiling._hlo.module import Instruction, Module
from profiling._hlo.op_name import parse_op_name
from profiling._hlo.opcodes import COLLECTIVES, OPCODES
from profiling._profile.sweep import COMPUTES, HOLDS, MOVES, Level
from profiling._timeline.flops import matmul

HOLDING = frozenset(("while", "call", "conditional", "async-start"))
"""Opcodes of what only holds other operations."""
_COUNTER = re.compile(r"(\.(\d+|clone|cloned|remat\d*))+$")
_OFFLOADED = re.compile(r"(.+)\.call-(start|done)$")
"""A TPU's collective on sparse cores: all-gather.382.cloned.1.call-done."""
_KERNEL_MATMUL = re.compile(
    r"gemm|nvjet|cutlass|cublas|wgmma|xmma|cijk_|matmul|convolution|dot|conv(?!ert)",
    re.IGNORECASE,
)
_NCCL = re.compile(
    r"[nr]ccl\w*?(AllGather|AllReduce|ReduceScatter|SendRecv|AllToAll|Broadcast)|"
    r"[nr]ccl\w*Kernel",  # such as AMD's ncclDevKernel_Generic, which does any
    re.IGNORECASE,
)
_NCCL_KIND = {
    "allgather": "all-gather",
    "allreduce": "all-reduce",
    "reducescatter": "reduce-scatter",
    "sendrecv": "collective-permute",
    "alltoall": "all-to-all",
    "broadcast": "collective-broadcast",
}
_ALIASES = {"all-reduce-scatter": "reduce-scatter"}  # as a TPU's fusion of it is named
_ASYNC = ("async-start", "async-done", "call-start", "call-done")
_ANY = "collective"
"""Kind of one of which it is not known."""
_FUSED = "async-collective"
"""What a TPU's fusions that start and end a collective are called."""
_GPU_KINDS = {"Memset ": "memset", "CudaGraphExec:": "cuda-graph"}
"""What GPUs' events that are no kernels are called, with a number after it."""
_COPIES = frozenset(("copy", "copy-start", "copy-done", "transpose"))


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What an operation is.

    Attributes:
        kind: ``matmul``, ``fusion``, ``copy``, an opcode, or a collective's kind.
        level: What is charged where it runs beside others.
        collective: Name of the collective that it does, starts or ends; else empty.
        part: ``whole``, or ``start`` or ``done`` of one that has two operations.
        module: Path of the module that it is from; empty if unknown.
        phase: ``forward``, ``backward``, ``update`` or empty.
        source: ``file:line``; empty if unknown.
    """

    kind: str
    level: Level
    collective: str = ""
    part: str = ""
    module: str = ""
    phase: str = ""
    source: str = ""


class OpNames:
    """Looks up what operations are.

    Args:
        module: Of their program; None where the profile has no HLO of it.
    """

    def __init__(self, module: Module | None) -> None:
        self._module = module
        self._known: dict[tuple[str, str], OpInfo] = {}
        self._instructions: Mapping[str, Instruction] = {}
        self._collectives: dict[str, tuple[str, str, CollectiveOp]] = {}
        if module is None:
            return
        self._instructions = {i.name: i for i in module.instructions()}
        ops = collective_ops(module)
        for op, name in zip(ops, names_of(ops), strict=True):
            for place, part in _places(op):
                self._collectives.setdefault(place, (name, part, op))

    def __call__(self, name: str, category: str = "") -> OpInfo:
        """What an operation is.

        Args:
            name: Of the event.
            category: What else the profile says; see `OpEvent`.

        Returns:
            What is known.
        """
        found = self._known.get((name, category))
        if found is None:
            instruction = self._instructions.get(name)
            if instruction is None:
                found = _by_name(name, category)
            else:
                found = self._by_instruction(instruction)
            self._known[name, category] = found
        return found

    def has(self, name: str) -> bool:
        """Whether the program has an instruction of a name.

        Args:
            name: Of an event.

        Returns:
            True if it has.
        """
        return name in self._instructions

    @property
    def once(self) -> frozenset[str]:
        """Names of the operations that an execution of the program does once."""
        entry = () if self._module is None else self._module.entry.instructions
        return frozenset(i.name for i in entry)

    def _by_instruction(self, instruction: Instruction) -> OpInfo:
        scope = parse_op_name(instruction.metadata.op_name)
        metadata = instruction.metadata
        file = metadata.source_file.rpartition("/")[2]
        line = f":{metadata.source_line}" if metadata.source_line else ""
        where = (scope.module, scope.phase, f"{file}{line}" if file else "")
        kind = self._kind(instruction)
        name, part, op = self._collectives.get(instruction.name, ("", "", None))
        if op is not None and kind != "matmul":
            return OpInfo(op.kind, MOVES, name, part, *where)
        if instruction.opcode in _ASYNC:  # named for what it wraps
            found = _by_name(instruction.name, "")
            return replace(found, module=where[0], phase=where[1], source=where[2])
        level: Level = HOLDS if instruction.opcode in HOLDING else COMPUTES
        return OpInfo(kind, level, "", "", *where)

    def _kind(self, instruction: Instruction) -> str:
        if any(matmul(inner) is not None for inner in self._inside(instruction)):
            return "matmul"
        opcode = instruction.opcode
        return "copy" if opcode in _COPIES else opcode.removesuffix("-start")

    def _inside(self, instruction: Instruction) -> Iterator[Instruction]:
        if instruction.opcode != "fusion" or self._module is None:
            yield instruction
            return
        for name in instruction.called:
            for inner in self._module.computation(name).instructions:
                yield from self._inside(inner)


def _places(op: CollectiveOp) -> Iterator[tuple[str, str]]:
    """Names of events that a collective may have, and what part of it each is."""
    if op.done is None or op.done is op.start:
        yield op.start.name, "whole"
    else:
        yield op.start.name, "start"
        yield op.done.name, "done"
    yield op.instruction.name, "whole"


def _by_name(name: str, category: str) -> OpInfo:
    """What the name alone tells, of an instruction, a category or a kernel."""
    base = _COUNTER.sub("", name)
    offloaded = _OFFLOADED.match(base)
    if offloaded:
        base = f"{_COUNTER.sub('', offloaded[1])}-{offloaded[2]}"
    collective = _collective(name, base, category)
    if collective is not None:
        return collective
    opcode = base.removesuffix("-done").removesuffix("-start")
    if base in HOLDING:
        return OpInfo(base, HOLDS)
    if _KERNEL_MATMUL.search(base) or _KERNEL_MATMUL.search(category):
        return OpInfo("matmul", COMPUTES)
    if "fusion" in base or "fusion" in category:
        return OpInfo("fusion", COMPUTES)
    if opcode in _COPIES or "memcpy" in base.lower():
        return OpInfo("copy", COMPUTES)
    for start, kind in _GPU_KINDS.items():
        if base.startswith(start):
            return OpInfo(kind, COMPUTES)
    is_told = opcode not in OPCODES and category in OPCODES
    return OpInfo(category if is_told else opcode, COMPUTES)


def _collective(name: str, base: str, category: str) -> OpInfo | None:
    part = "done" if base.endswith("-done") else "start"
    opcode = base.removesuffix("-done").removesuffix("-start")
    kernel = _NCCL.search(name) or _NCCL.search(category)
    if collective_kind(opcode) or opcode == _FUSED or kernel:
        kind = _ANY if opcode == _FUSED else opcode
        if kernel:
            kind = _NCCL_KIND.get((kernel[1] or "").lower(), _ANY)
        whole = not base.endswith(("-start", "-done"))
        own = name.replace("-done", "-start") if part == "done" else name
        return OpInfo(kind, MOVES, own, "whole" if whole else part)
    for text in (opcode, category.replace(" fusion", "-fusion")):
        for kind in (*_ALIASES, *COLLECTIVES):  # a fusion that is named for what it is
            if text.startswith(f"{kind}-"):
                return OpInfo(_ALIASES.get(kind, kind), MOVES, name, "whole")
    return None
