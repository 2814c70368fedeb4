"""See what the compiler did: read HLO, find what moves, and what it costs.

Nothing here imports torch or torch_xla. Names load on first use, so that reading a dump
pays only for what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiling._analyse import analyse
    from profiling._capture.capture import capture
    from profiling._capture.serve import serve
    from profiling._collectives.collective import Collective, Moved
    from profiling._collectives.ops import CollectiveOp, collective_ops
    from profiling._collectives.totals import Total
    from profiling._collectives.wire_bytes import wire_bytes
    from profiling._compiling.compile import compile, compile_many
    from profiling._compiling.compiled import Compiled, CompileError, Memory
    from profiling._diff.diff import Diff, diff
    from profiling._diff.read import side
    from profiling._diff.side import Side
    from profiling._dump import Dump, DumpedProgram
    from profiling._findings.explain import explain
    from profiling._findings.finding import Change, Figures, Finding, Fix, Proof
    from profiling._findings.verify import Verified, verify
    from profiling._hlo.device_groups import DeviceGroups
    from profiling._hlo.load import load_module
    from profiling._hlo.loops import Executions, Loop, executions, loops
    from profiling._hlo.module import (
        Attributes,
        Computation,
        Instruction,
        Metadata,
        Module,
    )
    from profiling._hlo.shape import Shape
    from profiling._memory.use import HeldTensor, MemoryUse, PeakBuffer
    from profiling._metrics.step_metrics import StepMetrics
    from profiling._metrics.step_record import StepRecord
    from profiling._profile.profile import (
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
    from profiling._profile.read import read_profile
    from profiling._read import read
    from profiling._schedule import Schedule
    from profiling._step.flops import StepFlops, step_flops
    from profiling._targets.chip import Chip, Link
    from profiling._targets.target import Target, targets
    from profiling._timeline.timeline import Event, Overlap, Timeline

_HOME = {
    "Attributes": "_hlo.module",
    "Change": "_findings.finding",
    "Chip": "_targets.chip",
    "Collective": "_collectives.collective",
    "CollectiveOp": "_collectives.ops",
    "CompileError": "_compiling.compiled",
    "Compiled": "_compiling.compiled",
    "Computation": "_hlo.module",
    "DeviceGroups": "_hlo.device_groups",
    "Diff": "_diff.diff",
    "Dump": "_dump",
    "DumpedProgram": "_dump",
    "Event": "_timeline.timeline",
    "Executions": "_hlo.loops",
    "Figures": "_findings.finding",
    "Finding": "_findings.finding",
    "Fix": "_findings.finding",
    "HeldTensor": "_memory.use",
    "HostEvent": "_profile.profile",
    "HostTime": "_profile.profile",
    "Instruction": "_hlo.module",
    "Link": "_targets.chip",
    "Loop": "_hlo.loops",
    "Memory": "_compiling.compiled",
    "MemoryUse": "_memory.use",
    "Metadata": "_hlo.module",
    "Module": "_hlo.module",
    "Moved": "_collectives.collective",
    "OpClass": "_profile.profile",
    "Overlap": "_timeline.timeline",
    "PeakBuffer": "_memory.use",
    "Profile": "_profile.profile",
    "ProfiledCollective": "_profile.profile",
    "ProfiledHost": "_profile.profile",
    "ProfiledOp": "_profile.profile",
    "ProfiledStep": "_profile.profile",
    "Proof": "_findings.finding",
    "Schedule": "_schedule",
    "Shape": "_hlo.shape",
    "Side": "_diff.side",
    "Spent": "_profile.profile",
    "StepFlops": "_step.flops",
    "StepMetrics": "_metrics.step_metrics",
    "StepRecord": "_metrics.step_record",
    "Target": "_targets.target",
    "Timeline": "_timeline.timeline",
    "Total": "_collectives.totals",
    "Verdict": "_profile.profile",
    "Verified": "_findings.verify",
    "analyse": "_analyse",
    "capture": "_capture.capture",
    "collective_ops": "_collectives.ops",
    "compile": "_compiling.compile",
    "compile_many": "_compiling.compile",
    "diff": "_diff.diff",
    "executions": "_hlo.loops",
    "explain": "_findings.explain",
    "load_module": "_hlo.load",
    "loops": "_hlo.loops",
    "read": "_read",
    "read_profile": "_profile.read",
    "serve": "_capture.serve",
    "side": "_diff.read",
    "step_flops": "_step.flops",
    "targets": "_targets.target",
    "verify": "_findings.verify",
    "wire_bytes": "_collectives.wire_bytes",
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
