"""See what the compiler did: read HLO, find what moves, and what it costs.

Nothing here imports torch or torch_xla. Names load on first use, so that reading a dump
pays only for what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiling._analyse import analyse
    from profiling._capture import capture
    from profiling._chip import Chip, Link
    from profiling._collective import Collective, Moved
    from profiling._collective_ops import CollectiveOp, collective_ops
    from profiling._compile import compile, compile_many
    from profiling._compiled import Compiled, CompileError, Memory
    from profiling._device_groups import DeviceGroups
    from profiling._diff import Diff, diff
    from profiling._diff_read import side
    from profiling._diff_side import Side
    from profiling._dump import Dump, DumpedProgram
    from profiling._explain import explain
    from profiling._finding import Change, Figures, Finding, Fix, Proof
    from profiling._hlo import Attributes, Computation, Instruction, Metadata, Module
    from profiling._load import load_module
    from profiling._loops import Executions, Loop, executions, loops
    from profiling._memory_use import HeldTensor, MemoryUse, PeakBuffer
    from profiling._profile import (
        HostEvent,
        HostTime,
        OpClass,
        Profile,
        ProfiledCollective,
        ProfiledHost,
        ProfiledOp,
        ProfiledStep,
        Spent,
        Verdict,
    )
    from profiling._profile_read import read_profile
    from profiling._read import read
    from profiling._schedule import Schedule
    from profiling._serve import serve
    from profiling._shape import Shape
    from profiling._step_flops import StepFlops, step_flops
    from profiling._step_metrics import StepMetrics
    from profiling._step_record import StepRecord
    from profiling._target import Target, targets
    from profiling._timeline import Event, Overlap, Timeline
    from profiling._totals import Total
    from profiling._verify import Verified, verify
    from profiling._wire_bytes import wire_bytes

_HOME = {
    "Attributes": "_hlo",
    "Change": "_finding",
    "Chip": "_chip",
    "Collective": "_collective",
    "CollectiveOp": "_collective_ops",
    "CompileError": "_compiled",
    "Compiled": "_compiled",
    "Computation": "_hlo",
    "DeviceGroups": "_device_groups",
    "Diff": "_diff",
    "Dump": "_dump",
    "DumpedProgram": "_dump",
    "Event": "_timeline",
    "Executions": "_loops",
    "Figures": "_finding",
    "Finding": "_finding",
    "Fix": "_finding",
    "HeldTensor": "_memory_use",
    "HostEvent": "_profile",
    "HostTime": "_profile",
    "Instruction": "_hlo",
    "Link": "_chip",
    "Loop": "_loops",
    "Memory": "_compiled",
    "MemoryUse": "_memory_use",
    "Metadata": "_hlo",
    "Module": "_hlo",
    "Moved": "_collective",
    "OpClass": "_profile",
    "Overlap": "_timeline",
    "PeakBuffer": "_memory_use",
    "Profile": "_profile",
    "ProfiledCollective": "_profile",
    "ProfiledHost": "_profile",
    "ProfiledOp": "_profile",
    "ProfiledStep": "_profile",
    "Proof": "_finding",
    "Schedule": "_schedule",
    "Shape": "_shape",
    "Side": "_diff_side",
    "Spent": "_profile",
    "StepFlops": "_step_flops",
    "StepMetrics": "_step_metrics",
    "StepRecord": "_step_record",
    "Target": "_target",
    "Timeline": "_timeline",
    "Total": "_totals",
    "Verdict": "_profile",
    "Verified": "_verify",
    "analyse": "_analyse",
    "capture": "_capture",
    "collective_ops": "_collective_ops",
    "compile": "_compile",
    "compile_many": "_compile",
    "diff": "_diff",
    "executions": "_loops",
    "explain": "_explain",
    "load_module": "_load",
    "loops": "_loops",
    "read": "_read",
    "read_profile": "_profile_read",
    "serve": "_serve",
    "side": "_diff_read",
    "step_flops": "_step_flops",
    "targets": "_target",
    "verify": "_verify",
    "wire_bytes": "_wire_bytes",
}

__all__ = [
    "Attributes",
    "Change",
    "Chip",
    "Collective",
    "CollectiveOp",
    "CompileError",
    "Compiled",
    "Computation",
    "DeviceGroups",
    "Diff",
    "Dump",
    "DumpedProgram",
    "Event",
    "Executions",
    "Figures",
    "Finding",
    "Fix",
    "HeldTensor",
    "HostEvent",
    "HostTime",
    "Instruction",
    "Link",
    "Loop",
    "Memory",
    "MemoryUse",
    "Metadata",
    "Module",
    "Moved",
    "OpClass",
    "Overlap",
    "PeakBuffer",
    "Profile",
    "ProfiledCollective",
    "ProfiledHost",
    "ProfiledOp",
    "ProfiledStep",
    "Proof",
    "Schedule",
    "Shape",
    "Side",
    "Spent",
    "StepFlops",
    "StepMetrics",
    "StepRecord",
    "Target",
    "Timeline",
    "Total",
    "Verdict",
    "Verified",
    "analyse",
    "capture",
    "collective_ops",
    "compile",
    "compile_many",
    "diff",
    "executions",
    "explain",
    "load_module",
    "loops",
    "read",
    "read_profile",
    "serve",
    "side",
    "step_flops",
    "targets",
    "verify",
    "wire_bytes",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'profiling' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"profiling.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(set(globals()) | set(__all__))
