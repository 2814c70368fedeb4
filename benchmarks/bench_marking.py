"""Seconds to annotate a model of 1000 parameters, beside torch_xla's own call.

    python benchmarks/bench_marking.py

Both annotate freshly made parameters, since torch_xla refuses one that is annotated
already. The two take turns, and the fastest of the runs counts.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
from rich.console import Console
from rich.table import Table
from torch import nn

import spmd

DEVICES = 8  # virtual CPU devices
SHAPE = (64, 64)  # of each parameter: small, so that the call counts and not the copy
SPEC = ("fsdp", None)  # split the first dim over all devices

IMPORT = """
import time
start = time.perf_counter()
import spmd
print(time.perf_counter() - start)
"""


def make_parameters(num: int) -> list[nn.Parameter]:
    """Parameters on the device, all data in place."""
    parameters = [nn.Parameter(torch.randn(SHAPE).to("xla")) for _ in range(num)]
    torch_xla.sync()
    xm.wait_device_ops()
    return parameters


def seconds(mark: Callable[[torch.Tensor], object], num: int) -> float:
    """Time `mark` on each of `num` fresh parameters, data placed included."""
    parameters = make_parameters(num)
    start = time.perf_counter()
    for parameter in parameters:
        mark(parameter)
    xm.wait_device_ops()
    return time.perf_counter() - start


def import_seconds() -> float:
    """Time `import spmd` in a process of its own, as that process sees it."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the annotation of a model.")
    parser.add_argument("--parameters", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()

    spmd.init(cpu_devices=DEVICES)
    ours = spmd.Mesh({"fsdp": DEVICES})
    theirs = xs.Mesh(np.arange(DEVICES), (DEVICES,), ("fsdp",))
    calls = {
        "spmd.mark_sharding": lambda p: spmd.mark_sharding(p, ours, SPEC),
        "torch_xla mark_sharding": lambda p: xs.mark_sharding(p, theirs, SPEC),
    }
    times = {name: [] for name in calls}
    for _ in range(args.runs):
        for name, mark in calls.items():
            times[name].append(seconds(mark, args.parameters))
    best = {name: min(taken) for name, taken in times.items()}
    baseline = best["torch_xla mark_sharding"]

    table = Table(
        title=f"Annotate {args.parameters} parameters of {list(SHAPE)} over {DEVICES} "
        f"CPU devices; measured here, fastest of {args.runs}"
    )
    table.add_column("call")
    table.add_column("seconds", justify="right")
    table.add_column("ratio to torch_xla", justify="right")
    for name, taken in best.items():
        table.add_row(name, f"{taken:.3f}", f"{taken / baseline:.2f}")
    imported = min(import_seconds() for _ in range(args.runs))
    table.add_row("import spmd", f"{imported:.3f}", "")
    Console().print(table)


if __name__ == "__main__":
    main()
