"""`CollectiveOp`: every collective of a module, with its bytes and its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from profiling._collectives.async_pairs import Found, Users, find
from profiling._collectives.participants import participants
from profiling._collectives.reduce_scatter import scattered_bytes
from profiling._collectives.windowed import windowed_loops
from profiling._collectives.wire_bytes import wire_bytes
from profiling._hlo.device_groups import DeviceGroups
from profiling._hlo.loops import Executions, Loop, executions, loops
from profiling._hlo.module import Computation, Instruction, Module
from profiling._hlo.shape import Shape

Form: TypeAlias = Literal[
    "plain", "all-reduce + slice", "fused reduce-scatter", "async fusion", "windowed"
]


@dataclass(frozen=True, slots=True, repr=False)
class CollectiveOp:
    """One collective as the compiler left it.

    Attributes:
        kind: What it does, e.g. ``"reduce-scatter"``.
        form: How it is written: ``"plain"``; ``"all-reduce + slice"``, a reduce-scatter
            that the backend does as an all-reduce and that costs as one;
            ``"fused reduce-scatter"``, the same inside one fusion, which costs as a
            reduce-scatter; ``"async fusion"``, spread over a TPU's fusions;
            ``"windowed"``, a permute of a windowed einsum.
        instruction: What says its groups and where it comes from.
        inner: Name of the computation `instruction` is in.
        computation: Name of the computation whose order says when it runs.
        start: Instruction of `computation` that starts it.
        done: The one that ends it; None if it ends in another computation.
        start_at: Index of `start` in `computation`.
        done_at: Index of `done`; -1 if None.
        groups: Devices that take part together; of a permute, that its pairs connect.
        pairs: Of a permute, source and target.
        dtype: Of what is moved; several are joined by ``+``.
        operand_bytes: On one device, of one execution.
        output_bytes: On one device, of one execution.
        wire_bytes: Sent by one device in one execution; see `wire_bytes`.
        runs: Executions in one step.
        is_async: Other instructions may run between start and done.
        loop: Of a windowed einsum, the name of its while; else empty.
    """

    kind: str
    form: Form
    instruction: Instruction
    inner: str
    computation: str
    start: Instruction
    done: Instruction | None
    start_at: int
    done_at: int
    groups: DeviceGroups
    pairs: tuple[tuple[int, int], ...]
    dtype: str
    operand_bytes: int
    output_bytes: int
    wire_bytes: int
    runs: Executions
    is_async: bool
    loop: str = ""

    @property
    def step_wire_bytes(self) -> int:
        """Bytes one device sends in one step."""
        return self.wire_bytes * self.runs.times

    def __repr__(self) -> str:
        form = "" if self.form == "plain" else f" ({self.form})"
        return (
            f"CollectiveOp({self.instruction.name}: {self.kind}{form} of "
            f"{self.operand_bytes} bytes {self.dtype} in {self.groups.largest_group}s, "
            f"{self.wire_bytes} on the wire, {self.runs.times}x"
            f"{', async' if self.is_async else ''})"
        )


def collective_ops(module: Module) -> tuple[CollectiveOp, ...]:
    """Find every collective that a step runs.

    Args:
        module: A partitioned module; in one that is scheduled, `start_at` and `done_at`
            say when it runs.

    Returns:
        Collectives in the order of their computations, then of their starts.

    Raises:
        ValueError: A tuple-shaped operand that no collective takes.

    Example:
        >>> from profiling._hlo.text import read_text
        >>> text = '''HloModule m, num_partitions=4
        ... ENTRY e {
        ...   p = f32[2,8] parameter(0)
        ...   ROOT g = f32[8,8] all-gather(p), channel_id=1, dimensions={0},
        ...     replica_groups=[1,4]<=[4], use_global_device_ids=true
        ... }'''
        >>> collective_ops(read_text(text.encode().splitlines(True), source="m"))
        (CollectiveOp(g: all-gather of 64 bytes f32 in 4s, 192 on the wire, 1x),)
    """
    runs = executions(module)
    found = [(f, u) for f, u in find(module) if runs[f.computation.name].times]
    if not found:
        return ()
    rings = windowed_loops(module, loops(module), (f for f, _ in found))
    places = _Places()
    ops = [_op(module, f, u, runs[f.computation.name], rings, places) for f, u in found]
    order = {c.name: i for i, c in enumerate(module.computations)}
    return tuple(sorted(ops, key=lambda op: (order[op.computation], op.start_at)))


class _Places:
    """Index of an instruction in its computation; built once for each."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Instruction, int]] = {}

    def __call__(self, computation: Computation, instruction: Instruction) -> int:
        found = self._known.get(computation.name)
        if found is None:
            found = {i: n for n, i in enumerate(computation.instructions)}
            self._known[computation.name] = found
        return found[instruction]


def _op(
    module: Module,
    found: Found,
    users: Users,
    runs: Executions,
    rings: dict[Instruction, Loop],
    places: _Places,
) -> CollectiveOp:
    instruction = found.instruction
    groups = participants(found.kind, instruction.attributes, module)
    num_devices = groups.largest_group
    moved = _moved(found.kind, instruction)
    operand_bytes = sum(shape.num_bytes for shape in moved)
    output_bytes = _output(found).num_bytes
    kind, form = found.kind, "plain"
    if kind == "all-reduce" and found.done is not None:
        kept = scattered_bytes(module, found.inner, found.result, users, num_devices)
        if kept is not None:
            fused = found.start.opcode == "fusion"
            form = "fused reduce-scatter" if fused else "all-reduce + slice"
            kind, output_bytes = "reduce-scatter", kept
    elif found.start.opcode == "fusion" and found.is_split:
        form = "async fusion"
    elif instruction in rings:
        form = "windowed"
    start_at = places(found.computation, found.start)
    done_at = -1 if found.done is None else places(found.computation, found.done)
    return CollectiveOp(
        kind,
        form,
        instruction,
        found.inner.name,
        found.computation.name,
        found.start,
        found.done,
        start_at,
        done_at,
        groups,
        instruction.attributes.pairs,
        "+".join(dict.fromkeys(s.dtype for shape in moved for s in shape.leaves())),
        operand_bytes,
        output_bytes,
        wire_bytes(
            found.kind if form == "all-reduce + slice" else kind,
            num_devices,
            operand_bytes=operand_bytes,
            output_bytes=output_bytes,
        ),
        runs,
        found.is_split and done_at != start_at + 1 and not _is_sync(found.start),
        rings[instruction].instruction.name if instruction in rings else "",
    )


def _moved(kind: str, instruction: Instruction) -> list[Shape]:
    """Shapes that leave the device: of a ragged all-to-all the first operand alone."""
    operands: Iterable[Instruction] = instruction.operands
    if kind == "ragged-all-to-all":
        operands = instruction.operands[:1]
    return [operand.shape for operand in operands]


def _output(found: Found) -> Shape:
    """The result's shape; a start whose done is elsewhere has it as its second part."""
    if found.inner is found.computation and found.done is None:
        elements = found.instruction.shape.elements
        if found.kind != "all-reduce" and len(elements) > 1:
            return elements[1]
        return found.instruction.shape
    return found.result.shape


def _is_sync(start: Instruction) -> bool:
    """The GPU compiler says so of pairs that it will not overlap."""
    return '"is_sync":true' in start.attributes.backend_config
