"""Compile time, program size and memory of a training step, against its depth.

    python benchmarks/bench_depth.py                   # about a quarter of an hour
    python benchmarks/bench_depth.py --layers 4 16     # quicker

A decoder under FSDPv2 is compiled for a host of 8 H100; nothing is run. The first table
has its layers one by one and in one loop (`scan_layers=True`), with nothing cached; the
ratios are to the first depth. The second has what `remat` keeps from forward to
backward. Seconds are measured here; bytes are the compiler's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any

import model_steps
from model_steps import Sizes
from rich.console import Console
from rich.table import Table

import profiling
import spmd

TARGET = "h100:1x8"
MESH = {"fsdp": 8}
SIZES = Sizes(4, 1024, 2816, 16, 16, 32000, 512)
ROWS = 4  # on each device
REMAT = ("none", "selective", "full")
MB = 1e6


@dataclass(frozen=True)
class Cost:
    """One compile, with nothing cached."""

    trace_s: float
    compile_s: float
    program_bytes: int
    temp_bytes: int
    wire_bytes: int


def cost(layers: int, **options: Any) -> Cost:
    mesh = spmd.Mesh(MESH)
    sizes = replace(SIZES, layers=layers)
    model = model_steps.fsdp(
        "decoder", model_steps.decoder_model(sizes), mesh, **options
    )
    start = time.perf_counter()
    program = model_steps.trace(
        "decoder", model, mesh, rows=ROWS, seq=sizes.seq, adam=False, name="decoder"
    )
    trace_s = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as cache:
        schedule = profiling.compile(program, TARGET, cache_dir=cache)
    return Cost(
        trace_s,
        schedule.compile_s or 0.0,
        len(program.module),
        schedule.memory.temp_bytes or 0,
        schedule.wire_bytes,
    )


def depth_table(layers: list[int]) -> Table:
    table = Table(
        title=f"A step of a decoder of width {SIZES.hidden}, compiled for {TARGET}; "
        f"seconds measured here"
    )
    table.add_column("layers", justify="right")
    table.add_column("as", no_wrap=True)
    for column in ("trace s", "compile s", "ratio", "program MB", "ratio"):
        table.add_column(column, justify="right")
    for name, options in (("one by one", {}), ("a loop", {"scan_layers": True})):
        first = None
        for number in layers:
            found = cost(number, **options)
            first = first or found
            table.add_row(
                str(number),
                name,
                f"{found.trace_s:.1f}",
                f"{found.compile_s:.1f}",
                f"{found.compile_s / first.compile_s:.2f}",
                f"{found.program_bytes / MB:.2f}",
                f"{found.program_bytes / first.program_bytes:.2f}",
            )
        table.add_section()
    return table


def remat_table(layers: int) -> Table:
    table = Table(
        title=f"{layers} layers of it, {ROWS} x {SIZES.seq} tokens a device: what is "
        f"kept for the backward pass"
    )
    table.add_column("remat", no_wrap=True)
    for column in ("temporaries MB", "ratio", "on the wire MB", "ratio"):
        table.add_column(column, justify="right")
    costs = {
        **{name: cost(layers, remat=name) for name in REMAT},
        "scan_layers": cost(layers, scan_layers=True),
    }
    base = costs["none"]
    for name, found in costs.items():
        table.add_row(
            name,
            f"{found.temp_bytes / MB:.0f}",
            f"{found.temp_bytes / base.temp_bytes:.2f}",
            f"{found.wire_bytes / MB:.0f}",
            f"{found.wire_bytes / base.wire_bytes:.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile a step at several depths.")
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--remat-layers", type=int, default=16)
    args = parser.parse_args()
    spmd.init(cpu_devices=8)
    console = Console()
    console.print(depth_table(args.layers))
    console.print(remat_table(args.remat_layers))


if __name__ == "__main__":
    main()
