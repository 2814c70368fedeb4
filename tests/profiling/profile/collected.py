"""Profiles in the form in which XLA's collectors write those of GPUs and TPUs.

No such device is at hand. What planes hold follows the sources of the collectors
(`cupti_collector.cc`, `cupti_buffer_events.cc`) and, of TPUs, public accounts of runs
on v6e and v7x: that there are these lines, that an operation's own stats are those of
its name, and what offloaded collectives are called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.profiling.xplanes import Line, Plane, save

MADE_UP = 0x10000000
"""Streams from here on are none."""
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEP = "jit_train_step(11640939633798411639)"
OTHER = "jit_eval_step(5)"
STEPS, STEP_US = 5, 100.0


def gpu_profile(path: Path, *, graph: str = "") -> Path:
    """Steps of 100 us on a GPU: a matmul, an all-gather beside it, and a fusion.

    Between two the host copies what came out, and what goes in.

    Args:
        path: Where to.
        graph: Launched as a CUDA graph of which each ``node`` is an event, or only the
            ``whole``; empty for none.

    Returns:
        The path.
    """
    plane = Plane(
        "/device:GPU:0", device_vendor="Nvidia", gpu_device_name="NVIDIA H100"
    )
    held = plane.line("Stream #0(MemoryResidency,Memset)")
    compute = plane.line("Stream #14(Compute,MemcpyD2D)")
    talk = plane.line("Stream #22(Compute)")
    pages = plane.line(f"Stream #{MADE_UP + 2}(UnifiedMemory)")
    plane.line("_counters_").event("power_mw", 0, 0)
    plane.line("CUPTI overhead").event("BUFFER_FLUSH", 0, 500)
    details = "kind:Device num_bytes:1024 addr:0x0000000000000000"
    held.event("Memory Device", 0, 500, MemoryResidency_details=details)
    pages.event("UM_BYTES_TRANSFER_HTOD", 5, 480)
    for number in range(STEPS):
        at = STEP_US * number
        copied = "kind_src:Device kind_dst:Pinned size:4 dest:0 async:1"
        compute.event("MemcpyD2H", at + 82, 1, memcpy_details=copied)
        compute.event("MemcpyH2D", at + 98, 1, memcpy_details=copied)
        if graph == "whole":
            _kernel(compute, "CudaGraphExec:12", at, 80, "call", cuda_graph_exec_id=12)
            continue
        node = {"cuda_graph_id": 12, "cuda_graph_node_id": 7} if graph else {}
        for line, kernel, start, us, name in (
            (compute, "void cutlass::Kernel2<cutlass_gemm>(Params)", 0, 50, "dot.3"),
            (talk, GATHER, 20, 40, "all-gather-start.1"),
            (compute, "loop_add_fusion", 60, 20, "loop_add_fusion"),
        ):
            _kernel(line, kernel, at + start, us, "call.1" if graph else name, **node)
        held.event("Memset 2", at + 62, 1, Memset_details="kind:Device num_bytes:8")
    return save(path, plane, Plane("/host:CPU"))


def _kernel(
    line: Line, name: str, at: float, us: float, hlo_op: str, **stats: Any
) -> None:
    """As annotated: an outer range names the module, an inner one the instruction."""
    named = {"hlo_op": hlo_op, "hlo_module": "jit_step", "program_id": 7}
    line.event(
        name,
        at,
        us,
        correlation_id=round(at),
        context_id="$$1",
        tf_op="XlaModule",
        kernel_details="regs:32 static_shared:0 grid:1,1,1 block:128,1,1 occ_pct:50",
        **named,
        **stats,
    )


def tpu_profile(path: Path, *, cut: bool = False) -> Path:
    """Steps of 100 us on a TPU: a matmul, and an all-gather on a sparse core beside it.

    Args:
        path: Where to.
        cut: The capture begins and ends inside of a step, of which no run is marked.

    Returns:
        The path.
    """
    plane = Plane("/device:TPU:0", device_type_string="TPU v6 lite")
    names = ("_counters_", "Scalar Unit", "Steps", "XLA Modules", "XLA Ops")
    lines = {name: plane.line(name) for name in names}
    flying, overlay, traced = (
        plane.line(name) for name in ("Async XLA Ops", "TC Overlay", "XLA TraceMe")
    )
    sparse = Plane("/device:TPU:0 SparseCore 0", device_type_string="TPU v6 lite")
    offloaded = sparse.line("Sparse Core Ops")
    for number in range(STEPS):
        at = STEP_US * number
        is_cut = cut and number in (0, STEPS - 1)
        if not is_cut:
            lines["Steps"].event(str(number), at, 80)
            lines["XLA Modules"].event(STEP, at, 80, run_id=number + 1, queue_id=0)
        for symbol, row in enumerate(_OPS, 1):
            if not is_cut or (symbol > 2 if number == 0 else symbol < 3):
                _op(lines["XLA Ops"], at, symbol, *row)
        flying.event("%all-gather.8.cloned.1.call-start = ()", at, 70, flow=number)
        offloaded.event("all-gather.7", at + 1, 60)
        overlay.event("overlay", at, 80)
        traced.event("barrier-cores", at, 5)
    return save(path, sparse, plane, Plane("/host:CPU"), Plane("#Chip TPU:0 HBM"))


_OPS = (
    ("all-gather.8.cloned.1.call-start", "call-start", 0, 2, "async-start"),
    ("fusion.3", "fusion", 2, 48, "convolution fusion"),
    ("all-gather.8.cloned.1.call-done", "call-done", 50, 20, "async-done"),
    ("fusion.77", "fusion", 70, 10, "all-reduce-scatter fusion"),
)


def _op(line: Line, at: float, symbol: int, name: str, code: str, *timed: Any) -> None:
    start, us, category = timed
    line.event(
        f"%{name} = bf16[4096,4096]{{1,0:T(8,128)(2,1)}} {code}(%param.1)",
        at + start,
        us,
        display=name,
        shared={
            "hlo_category": category,
            "program_id": 11640939633798411639 - 2**64,
            "symbol_id": symbol,
            "tf_op": "jit(train_step)/dot_general:",
        },
        device_offset_ps=round((at + start) * 1e6),
        device_duration_ps=round(us * 1e6),
    )
