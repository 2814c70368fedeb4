"""Seconds and memory to trace a training step of Llama 3 for a pod, without its data.

    python benchmarks/bench_trace.py
    python benchmarks/bench_trace.py --cases 8b 70b

Each case is a whole AdamW step of Hugging Face's Llama in bf16 under FSDPv2 and tensor
parallelism, in a process of its own with 8 CPU devices. Peak memory counts everything
the process holds: importing torch, torch_xla, jax and transformers is most of it.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.table import Table

SEQ = 8192  # tokens a row; one row for each device that splits the batch
CASES = {"8b": (8, 4), "70b": (32, 8), "405b": (512, 8)}  # devices on fsdp and tensor
AIMS = {"70b": (10.0, 2.5e9)}  # seconds on a machine with nothing else to do, bytes


def run(case: str) -> dict[str, float]:
    """Trace one case in this process."""
    import model_steps

    import spmd
    from fsdpv2 import FSDPv2
    from spmd._program import file as program_file

    fsdp, tensor = CASES[case]
    spmd.init(cpu_devices=8)
    mesh = spmd.Mesh({"fsdp": fsdp, "tensor": tensor})
    model = model_steps.llama_model(replace(model_steps.LLAMA[case], seq=SEQ))
    spmd.shard_module(model, mesh, model_steps.weights_plan("llama", mesh))
    model = FSDPv2(model, mesh)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    program = model_steps.trace(
        "llama", model, mesh, rows=1, seq=SEQ, adam=True, name="step"
    )
    trace_s = time.perf_counter() - start
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "trace_s": trace_s,
        "peak_bytes": peak_kib * 1024,
        "before_bytes": before_kib * 1024,
        "module_bytes": len(program.module),
        "file_bytes": len(program_file.to_bytes(program)),
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "num_inputs": len(program.inputs),
        "num_devices": mesh.size,
    }


def ratio(case: str, found: dict[str, float]) -> str:
    """Time and memory as a part of what is aimed at; below 1 is good."""
    if case not in AIMS:
        return ""
    seconds, num_bytes = AIMS[case]
    return (
        f"{found['trace_s'] / seconds:.2f} of {seconds:g} s, "
        f"{found['peak_bytes'] / num_bytes:.2f} of {num_bytes / 1e9:g} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and weigh traces of Llama 3.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run(args.child)))
        return
    table = Table(title="spmd.trace of one AdamW step of Llama 3; measured here")
    columns = ("model", "devices", "inputs", "trace", "peak", "before", "module")
    for column in (*columns, "file", "ratio to the aim"):
        table.add_column(column, justify="right")
    for case in args.cases:
        done = subprocess.run(
            [sys.executable, __file__, "--child", case],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        table.add_row(
            f"{case} ({found['num_parameters'] / 1e9:.1f}e9)",
            str(found["num_devices"]),
            str(found["num_inputs"]),
            f"{found['trace_s']:.1f} s",
            f"{found['peak_bytes'] / 1e9:.2f} GB",
            f"{found['before_bytes'] / 1e9:.2f} GB",
            f"{found['module_bytes'] / 1e6:.1f} MB",
            f"{found['file_bytes'] / 1e6:.1f} MB",
            ratio(case, found),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
