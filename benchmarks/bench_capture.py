"""What `profiling.capture` costs: around a loop, while it records, and at its ends.

    python benchmarks/bench_capture.py
    python benchmarks/bench_capture.py --runtime jax

The same step runs in turns without a capture, in the block of one that waits for a
later step, and recorded; what is compared are neighbours in time. The second table is
what starting, and stopping with writing, take, and the cost of one span of the host.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
from rich.console import Console
from rich.table import Table

import profiling
import spmd
from spmd._host_spans import WAIT, span

DEVICES = 8
WIDTH = 768  # a step of some 50 ms on two busy cores
BATCH = 256
NEVER = 1_000_000
SPANS = 2_000


def training(runtime: str) -> Callable[[], float]:
    """A step on 8 CPU devices that returns its loss."""
    spmd.init(cpu_devices=DEVICES, runtime=runtime)
    mesh = spmd.Mesh({"fsdp": DEVICES})
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    model = spmd.to_device(torch.nn.Sequential(*layers))
    for parameter in model.parameters():
        spec = ("fsdp", *[None] * (parameter.ndim - 1))
        spmd.mark_sharding(parameter, mesh, spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
    batch = spmd.shard_batch(torch.randn(BATCH, WIDTH), mesh, "fsdp")
    return lambda: float(step(batch).item())


def timed(step: Callable[[], float], count: int) -> float:
    """Milliseconds of one of so many steps."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    return 1e3 * (time.perf_counter() - start) / count


def compare(
    step: Callable[[], float], folder: Path, rounds: int, count: int
) -> dict[str, list[float]]:
    """Milliseconds of a step without, around, and inside; one of each a round."""
    found: dict[str, list[float]] = {"without": [], "around": [], "recorded": []}
    ends: dict[str, list[float]] = {"start": [], "stop": [], "bytes": []}
    for _ in range(rounds):
        found["without"].append(timed(step, count))
        try:
            with profiling.capture(folder, steps=range(NEVER, NEVER + 1)):
                found["around"].append(timed(step, count))
        except RuntimeError:  # as it should: its step did not come
            pass
        before = time.perf_counter()
        capture = profiling.capture(folder)
        with capture:
            begun = time.perf_counter()
            found["recorded"].append(timed(step, count))
            done = time.perf_counter()
        ends["stop"].append(1e3 * (time.perf_counter() - done))
        ends["start"].append(1e3 * (begun - before))
        size = sum(path.stat().st_size for path in capture.path.glob("*.xplane.pb"))
        ends["bytes"].append(size / count)
    return found | ends


def span_ns() -> float:
    """Nanoseconds of a span while nothing is captured; the least of many."""
    least = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(SPANS):
            with span(WAIT):
                pass
        least = min(least, time.perf_counter() - start)
    return 1e9 * least / SPANS


def main() -> None:
    """Run, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", choices=["torch_xla", "jax"], default="torch_xla")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5, help="in a row of each kind")
    arguments = parser.parse_args()
    step = training(arguments.runtime)
    timed(step, 5)
    with tempfile.TemporaryDirectory() as folder:
        found = compare(step, Path(folder), arguments.rounds, arguments.steps)
    console = Console()
    table = Table("steps", "ms, median", "least", "over without", box=None)
    for kind in ("without", "around", "recorded"):
        pairs = zip(found[kind], found["without"], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        table.add_row(
            kind,
            f"{statistics.median(found[kind]):.2f}",
            f"{min(found[kind]):.2f}",
            "" if kind == "without" else f"{ratio:.3f}",
        )
    console.print(table)
    console.print(
        f"start {statistics.median(found['start']):.1f} ms, stop and write "
        f"{statistics.median(found['stop']):.1f} ms, "
        f"{statistics.median(found['bytes']) / 1e3:.0f} kB a step; a span of the host "
        f"{span_ns():.0f} ns while nothing is captured"
    )


if __name__ == "__main__":
    main()
