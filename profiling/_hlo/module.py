"""`Module`, `Computation` and `Instruction`: one HLO module, typed and small.

Equal things are one object: shapes, metadata and attributes repeat thousands of times
in a real module, so the readers intern them. An instruction points straight at its
operands; computations are named, and found by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from profiling._hlo.device_groups import DeviceGroups
from profiling._hlo.shape import Shape

MAIN_THREAD = "main"
"""Name of the thread of a computation that runs on the device's main stream."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """Where an instruction comes from.

    Attributes:
        op_name: Scopes and framework op, e.g. ``jit(step)/dot_general``.
        source_file: File of the line that made it; empty if unknown.
        source_line: Its line; 0 if unknown.
        frame: Index of its innermost frame in `Module.frames`; -1 if none.
        op_type: The framework's op, where it says one.
    """

    op_name: str = ""
    source_file: str = ""
    source_line: int = 0
    frame: int = -1
    op_type: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry of a call stack; `parent` is the caller's index, -1 for the outermost.

    Attributes:
        file: Source file.
        function: Function name.
        line: Line.
        parent: Index in `Module.frames`.
    """

    file: str
    function: str
    line: int
    parent: int


@dataclass(frozen=True, slots=True)
class Attributes:
    """What an instruction says beyond shape and operands; defaults where it does not.

    Attributes:
        parameter: Number of a parameter; -1.
        tuple_index: Element that a get-tuple-element takes; -1.
        dimensions: Of broadcasts, reductions, collectives, transposes and others.
        slices: Of a slice, start, limit and stride of each dim.
        slice_sizes: Of a dynamic-slice.
        literal: Of a whole-number constant of at most 64 elements, its values.
        direction: Of a compare, e.g. ``"LT"``.
        lhs_contracting: Of a dot; so are the three that follow.
        rhs_contracting: See there.
        lhs_batch: See there.
        rhs_batch: See there.
        window: Sizes of a convolution's or reduce-window's window.
        window_steps: Stride, padding before and after, dilation of the operand and of
            the window, for each of its dims; empty where they are 1, 0, 0, 1 and 1.
        spatial: Of a convolution, for each dim of its window the dim of the operand and
            of the result that it moves over.
        kernel_output_dim: Of a convolution, which dim of the kernel makes output
            features; -1.
        feature_groups: Of a convolution.
        fft_length: Of an fft.
        fft_kind: Of an fft, e.g. ``"IFFT"``.
        fusion_kind: ``"kLoop"``, ``"kOutput"``, ``"kInput"`` or ``"kCustom"``.
        custom_call_target: Of a custom-call.
        backend_config: As the backend wrote it (JSON, or text of its own).
        frontend_attributes: Key and value.
        sharding: XLA's text; `spmd.HloSharding.parse` reads what splits over a mesh.
        channel: Channel id; 0 if none.
        groups: Of a collective that says any.
        global_ids: The groups count devices over all replicas and partitions.
        pairs: Of a collective-permute, source and target.
        after: Names of control predecessors.
        thread: Of an async-start, the thread it runs on.
    """

    parameter: int = -1
    tuple_index: int = -1
    dimensions: tuple[int, ...] = ()
    slices: tuple[tuple[int, int, int], ...] = ()
    slice_sizes: tuple[int, ...] = ()
    literal: tuple[int, ...] = ()
    direction: str = ""
    lhs_contracting: tuple[int, ...] = ()
    rhs_contracting: tuple[int, ...] = ()
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    window: tuple[int, ...] = ()
    window_steps: tuple[tuple[int, int, int, int, int], ...] = ()
    spatial: tuple[tuple[int, int], ...] = ()
    kernel_output_dim: int = -1
    feature_groups: int = 1
    fft_length: tuple[int, ...] = ()
    fft_kind: str = ""
    fusion_kind: str = ""
    custom_call_target: str = ""
    backend_config: str = ""
    frontend_attributes: tuple[tuple[str, str], ...] = ()
    sharding: str = ""
    channel: int = 0
    groups: DeviceGroups | None = None
    global_ids: bool = False
    pairs: tuple[tuple[int, int], ...] = ()
    after: tuple[str, ...] = ()
    thread: str = ""


NO_METADATA = Metadata()
NO_ATTRIBUTES = Attributes()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Instruction:
    """One HLO instruction; compared by identity.

    Attributes:
        name: Unique in its module, without ``%``.
        opcode: XLA's, e.g. ``"all-gather-start"``.
        shape: Of its result.
        operands: Instructions of the same computation.
        called: Names of computations it calls; of a while, body then condition.
        metadata: Where it comes from.
        attributes: What else it says.
        id: As a proto gives it; from text, a running number.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[Instruction, ...]
    called: tuple[str, ...]
    metadata: Metadata
    attributes: Attributes
    id: int

    @property
    def num_operand_bytes(self) -> int:
        """Bytes of all operands."""
        return sum(o.shape.num_bytes for o in self.operands)

    @property
    def constant(self) -> int | None:
        """Value of a whole-number scalar constant, else None."""
        found = self.attributes.literal
        return found[0] if len(found) == 1 and not self.shape.dims else None

    def __repr__(self) -> str:
        names = ", ".join(o.name for o in self.operands[:4])
        more = ", ..." if len(self.operands) > 4 else ""
        return f"Instruction({self.name} = {self.shape} {self.opcode}({names}{more}))"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Computation:
    """One HLO computation; compared by identity.

    Attributes:
        name: Unique in its module, without ``%``.
        instructions: Operands before users; in a scheduled module, in the order in
            which they run.
        root: The one whose value is the result.
        thread: Execution thread.
        id: As a proto gives it; from text, a running number.
    """

    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction
    thread: str = MAIN_THREAD
    id: int = 0

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """Parameters by number."""
        found = [i for i in self.instructions if i.opcode == "parameter"]
        return tuple(sorted(found, key=lambda i: i.attributes.parameter))

    def users(self) -> dict[Instruction, list[Instruction]]:
        """Who reads each instruction; built anew at each call.

        Returns:
            Users, in order, of each instruction that has any.
        """
        found: dict[Instruction, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                found.setdefault(operand, []).append(instruction)
        return found

    def __repr__(self) -> str:
        return f"Computation({self.name}, {len(self.instructions)} instructions)"


@dataclass(frozen=True, slots=True)
class Alias:
    """An output that takes a parameter's buffer.

    Attributes:
        output: Index into the result, e.g. ``(1,)``; empty for the whole.
        parameter: Parameter of the entry.
        index: Index into that parameter.
        must: The buffers are one, not only may be.
    """

    output: tuple[int, ...]
    parameter: int
    index: tuple[int, ...] = ()
    must: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Module:
    """One HLO module; compared by identity.

    Attributes:
        name: As XLA names it.
        computations: Callees before callers.
        entry: The computation that a run starts with.
        is_scheduled: Instructions stand in the order in which they run.
        aliases: Outputs that take an input's buffer.
        donors: Parameter and index of inputs whose buffer any output may take.
        num_partitions: Devices the program is split over.
        num_replicas: Copies of that.
        frames: Call stack entries that `Metadata.frame` points into.
        frontend_attributes: Of the module.
        source: File it was read from.
    """

    name: str
    computations: tuple[Computation, ...]
    entry: Computation
    is_scheduled: bool = False
    aliases: tuple[Alias, ...] = ()
    donors: tuple[tuple[int, tuple[int, ...]], ...] = ()
    num_partitions: int = 1
    num_replicas: int = 1
    frames: tuple[Frame, ...] = ()
    frontend_attributes: tuple[tuple[str, str], ...] = ()
    source: str = ""
    _by_name: Mapping[str, Computation] = field(init=False)
    _instructions: dict[str, Instruction] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        found = MappingProxyType({c.name: c for c in self.computations})
        object.__setattr__(self, "_by_name", found)

    def computation(self, name: str) -> Computation:
        """The computation of a name.

        Args:
            name: With or without ``%``.

        Returns:
            The computation.

        Raises:
            KeyError: A name the module does not have.
        """
        name = name.removeprefix("%")
        if name not in self._by_name:
            raise KeyError(f"module {self.name!r} has no computation {name!r}")
        return self._by_name[name]

    def instruction(self, name: str) -> Instruction:
        """The instruction of a name; the first call builds an index.

        Args:
            name: With or without ``%``.

        Returns:
            The instruction.

        Raises:
            KeyError: A name the module does not have.
        """
        if not self._instructions:
            self._instructions.update((i.name, i) for i in self.instructions())
        name = name.removeprefix("%")
        if name not in self._instructions:
            raise KeyError(f"module {self.name!r} has no instruction {name!r}")
        return self._instructions[name]

    def instructions(self) -> Iterator[Instruction]:
        """Yield every instruction of every computation.

        Yields:
            Instructions, computation by computation.
        """
        for computation in self.computations:
            yield from computation.instructions

    def stack(self, metadata: Metadata) -> tuple[Frame, ...]:
        """The call stack of an instruction, innermost first.

        Args:
            metadata: Its metadata.

        Returns:
            Frames; empty where the module has none.
        """
        found: list[Frame] = []
        at = metadata.frame
        while 0 <= at < len(self.frames) and len(found) <= len(self.frames):
            found.append(self.frames[at])
            at = self.frames[at].parent
        return tuple(found)

    def __repr__(self) -> str:
        count = sum(len(c.instructions) for c in self.computations)
        return (
            f"Module({self.name}, {count} instructions in {len(self.computations)} "
            f"computations, {self.num_partitions} partitions"
            f"{', scheduled' if self.is_scheduled else ''})"
        )


def interned(text: str) -> str:
    """One object for equal names.

    Args:
        text: A short string that repeats.

    Returns:
        The same string.
    """
    return sys.intern(text)
