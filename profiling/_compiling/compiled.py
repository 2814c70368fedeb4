"""What one compile gave: `Compiled`, its `Memory`, or a `CompileError`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from profiling._targets.target import Target
from spmd._program.summary import bytes_text

ErrorKind = Literal[
    "crash", "flag", "memory", "lock", "timeout", "missing extra", "other"
]
FlagValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one device, as the compiler reports them.

    Attributes:
        argument_bytes: Inputs.
        output_bytes: Outputs, aliased ones included.
        alias_bytes: Outputs that take over an input's memory.
        temp_bytes: Temporaries: one arena, laid out by the compiler.
        code_bytes: Generated code; 0 where the compiler does not say (GPU, CPU).
        peak_bytes: Most that is in use at any time. CPU's compiler leaves temporaries
            out of its own figure; `total_bytes` stands in for it.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int
    peak_bytes: int

    @property
    def total_bytes(self) -> int:
        """What the runtime allocates for one run."""
        kept = self.argument_bytes + self.output_bytes - self.alias_bytes
        return kept + self.temp_bytes + self.code_bytes

    @classmethod
    def reported(cls, figures: Mapping[str, int], *, peak_is_whole: bool) -> Memory:
        """Memory from XLA's own names.

        Args:
            figures: Bytes by name, such as `temp_size_in_bytes`.
            peak_is_whole: The compiler counts temporaries in its peak.

        Returns:
            The memory.

        Example:
            >>> names = ["argument", "output", "alias", "temp", "generated_code"]
            >>> figures = {f"{name}_size_in_bytes": 8 for name in names}
            >>> figures["peak_memory_in_bytes"] = 16
            >>> Memory.reported(figures, peak_is_whole=False).peak_bytes
            24
        """
        names = ("argument", "output", "alias", "temp", "generated_code")
        sizes = [figures[f"{name}_size_in_bytes"] for name in names]
        memory = cls(*sizes, peak_bytes=figures["peak_memory_in_bytes"])
        return memory if peak_is_whole else cls(*sizes, peak_bytes=memory.total_bytes)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Compiled:
    """A program as the target's compiler left it.

    Attributes:
        target: What it was compiled for.
        fingerprint: Of the program.
        flags: XLA flags that it was compiled with, defaults of `compile` included.
        hlo: The optimised module of one device in the order in which it runs: a
            serialised HloModuleProto.
        partitioned: The module just after partitioning, an HloModuleProto; None for one
            device, or where the compiler did not dump it.
        buffers: HloProto of the optimised module with its buffer assignment (ids in it
            are of the module inside it, not of `hlo`); None where there is none.
        memory: What the compiler reports.
        compile_s: Seconds the compiler took, process start not included.
        versions: Of the packages that compiled it, and the compiler's own words.
        warnings: What the compiler warned of, e.g. an involuntary rematerialisation.
        from_cache: Read from the cache instead of compiled.
    """

    target: Target
    fingerprint: str
    flags: Mapping[str, FlagValue]
    hlo: bytes
    partitioned: bytes | None
    buffers: bytes | None
    memory: Memory
    compile_s: float
    versions: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    from_cache: bool = False

    def __post_init__(self) -> None:
        for name in ("flags", "versions"):
            view = MappingProxyType(dict(getattr(self, name)))
            object.__setattr__(self, name, view)

    @property
    def over_bytes(self) -> int:
        """Bytes by which a device has too little memory; 0 where it fits."""
        capacity = self.target.hbm_bytes
        if capacity is None:
            return 0
        return max(0, self.memory.total_bytes - capacity)

    def __repr__(self) -> str:
        how = "cached" if self.from_cache else f"{self.compile_s:.1f} s"
        return (
            f"Compiled({self.target.text!r}, program {self.fingerprint[:8]}, "
            f"{bytes_text(self.memory.total_bytes)} a device, {how})"
        )


class CompileError(RuntimeError):
    """A program that could not be compiled for a target.

    Attributes:
        kind: `crash`, `flag`, `memory`, `lock`, `timeout`, `missing extra` or `other`.
        target: What it was to be compiled for.
        words: The compiler's own last words.
        over_bytes: `memory`: bytes missing on a device, as far as the compiler says.
        holders: `memory`: bytes of one device by what holds them.
        compiled: `memory` on a GPU: what the compiler made all the same.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ErrorKind,
        target: Target,
        words: str = "",
        over_bytes: int | None = None,
        holders: Mapping[str, int] | None = None,
        compiled: Compiled | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.target = target
        self.words = words
        self.over_bytes = over_bytes
        self.holders = MappingProxyType(dict(holders or {}))
        self.compiled = compiled
