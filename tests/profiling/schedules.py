"""Schedules made by hand, with every figure known."""

from __future__ import annotations

from typing import Any

from profiling._collectives.collective import Collective, Moved
from profiling._memory.use import HeldTensor, MemoryUse, PeakBuffer
from profiling._schedule import Schedule
from profiling._targets.target import Target
from profiling._timeline.timeline import Event, Overlap, Timeline
from spmd._meshes.mesh import Mesh
from tests.profiling.hlo_files import entry

LONG = "model.decoder.layers.17.self_attention.output_projection.weight"


def moved(role: str = "weight gather", wire_bytes: int = 96, **fields: Any) -> Moved:
    """One tensor of a collective."""
    known: dict[str, Any] = {
        "tensor": LONG,
        "phase": "forward",
        "module": LONG.removesuffix(".weight"),
        "source": "/home/me/project/model.py:42",
        "shape": "bf16[16]",
        "operand_bytes": 32,
    }
    return Moved(role=role, wire_bytes=wire_bytes, **{**known, **fields})


def collective(name: str, *what: Moved, **fields: Any) -> Collective:
    """A collective of 4 devices over fsdp."""
    what = what or (moved(),)
    known: dict[str, Any] = {
        "kind": "all-gather",
        "form": "plain",
        "axes": ("fsdp",),
        "groups": "[2,4]<=[4,2]T(1,0)",
        "group_size": 4,
        "num_groups": 2,
        "link": "nvlink",
        "crosses_hosts": False,
        "dtype": "bf16",
        "operand_bytes": 32,
        "output_bytes": 128,
        "wire_bytes": sum(m.wire_bytes for m in what),
        "num_runs": 1,
        "moved": what,
        "is_async": True,
    }
    return Collective(name=name, **{**known, **fields})


COLLECTIVES = (
    collective("ag.1", num_runs=3, total_s=3.0, hidden_s=2.0, exposed_s=1.0),
    collective(
        "ar.1",
        moved("gradient reduction", 300, phase="backward", tensor="w"),
        moved("scalar", 100, phase="backward", tensor="", module=""),
        kind="all-reduce",
        total_s=4.0,
        hidden_s=0.0,
        exposed_s=4.0,
    ),
    collective(
        "cp.1",
        moved("unknown", 12, phase="", tensor="", module="", source=""),
        kind="collective-permute",
        axes=(),
        groups="{{0,1},{2,3}}",
        group_size=2,
        link="ib",
        total_s=0.5,
        hidden_s=0.5,
        exposed_s=0.0,
    ),
)
TIMELINE = Timeline(
    events=(
        Event("dot.1", "compute", "matmul", 0.0, 2.0, 1, "layers.0", "forward"),
        Event("ag.1", "communication", "all-gather", 0.0, 3.0, 3, "", "forward"),
    ),
    step_s=10.0,
    compute_s=5.0,
    communication_s=7.5,
    hidden_s=2.5,
    exposed_s=5.0,
    flops=2e15,
    peak_flops=1e15,
    overlaps={
        c.name: Overlap(c.total_s or 0, c.hidden_s or 0, c.exposed_s or 0, False)
        for c in COLLECTIVES
    },
    matmul_overlap_share=0.4,
)
GIB = 2**30
MEMORY = MemoryUse(
    origin="compiled",
    argument_bytes=20 * GIB,
    output_bytes=16 * GIB,
    alias_bytes=15 * GIB,
    temp_bytes=30 * GIB,
    peak_bytes=50 * GIB,
    total_bytes=51 * GIB,
    capacity_bytes=80 * GIB,
    argument_bytes_by_role={"parameter": 5 * GIB, "optimizer": 15 * GIB},
    tensors=(
        HeldTensor("w", "parameter", "bf16", (64, 8), ("fsdp", None), 2 * GIB, 2),
        HeldTensor(LONG, "parameter", "bf16", (64,), None, 3 * GIB, 8),
        HeldTensor("m", "optimizer", "f32", (64,), (("fsdp", "tensor"),), 15 * GIB, 1),
    ),
    at_peak=(PeakBuffer("fusion.1", 9 * GIB, "bf16[9]", "op", "layers.0", "forward"),),
)


def schedule(**fields: Any) -> Schedule:
    """A schedule of three collectives on 8 GPUs."""
    known: dict[str, Any] = {
        "name": "step",
        "source": "",
        "module": entry("  ROOT p = f32[] parameter(0)"),
        "mesh": Mesh({"fsdp": 4, "tensor": 2}, dcn_axes="tensor"),
        "target": Target.parse("h100:1x8"),
        "memory": MEMORY,
        "collectives": COLLECTIVES,
        "timeline": TIMELINE,
        "flags": {"xla_a": True, "xla_b": 3},
        "versions": {"jaxlib": "0.10.2", "compiler": "NVIDIA H100"},
        "compile_s": 12.5,
        "warnings": ("[SPMD] Involuntary full rematerialization.",),
        "notes": (),
    }
    return Schedule(**{**known, **fields})
