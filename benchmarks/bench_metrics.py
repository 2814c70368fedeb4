"""What `profiling.StepMetrics` costs a training step, and `profiling.capture`.

    python benchmarks/bench_metrics.py

One compiled step that takes about 50 ms here, in blocks of 20, with and without in
turns: the loop alone, which waits for the devices once in ten steps as `StepMetrics`
does; with `StepMetrics` that prints, writes JSON lines and for TensorBoard; and while a
profile is captured. The second table is the time inside of `StepMetrics.step` itself,
given two values a step, and this thread's processor time of it, which other processes
disturb less. Waiting for the devices is no part of it, since the steps are over before
it is called; nor is freeing what the step returned, which a loop without it does too.
"""

import argparse
import io
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
import torch_xla.core.xla_model as xm
from rich.console import Console
from rich.table import Table
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2

DEVICES, LAYERS, ROWS = 8, 8, 256
BLOCK, LOG_EVERY = (
    20,
    10,
)  # steps of one kind in a row; a block's first ten do not count
WANTED_MS = 50
Step = Callable[[], torch.Tensor]


def training(dim: int) -> Step:
    """A compiled step of a few linear layers."""
    torch.manual_seed(0)
    model = FSDPv2(nn.Sequential(*(nn.Linear(dim, dim) for _ in range(LAYERS))))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = spmd.shard_batch(torch.randn(ROWS, dim), model.mesh)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
    return lambda: step(batch)


def sized() -> tuple[Step, int]:
    """A step of about `WANTED_MS` on this machine."""
    step, dim = training(128), 128
    for dim in (128, 192, 256, 384, 512, 768):
        step = training(dim)
        step().item()
        taken = []
        for _ in range(15):
            start = time.perf_counter()
            step().item()
            taken.append(time.perf_counter() - start)
        if min(taken) >= 0.8e-3 * WANTED_MS:
            break
    return step, dim


def alone(step: Step) -> Generator[None]:
    for number in itertools.count(1):
        loss = step()
        if number % LOG_EVERY == 0:
            loss.item()
        yield


def with_metrics(step: Step, folder: Path) -> Generator[None]:
    with profiling.StepMetrics(
        tokens=ROWS,
        log_every=LOG_EVERY,
        console=io.StringIO(),
        json_lines=folder / "metrics.jsonl",
        tensorboard=folder / "tensorboard",
    ) as metrics:
        while True:
            metrics.step(step())
            yield


def seconds_of(loop: Generator[None]) -> float:
    """Mean of the last steps of a block, whose first end with a wait as the last do."""
    for _ in range(LOG_EVERY):
        next(loop)
    start = time.perf_counter()
    for _ in range(BLOCK - LOG_EVERY):
        next(loop)
    return (time.perf_counter() - start) / (BLOCK - LOG_EVERY)


def inside(
    step: Step, folder: Path, windows: int, log_every: int
) -> tuple[list[float], list[float]]:
    """Seconds a step of `StepMetrics.step` in each window, and of this thread's CPU."""
    walls, cpus = [], []
    with profiling.StepMetrics(
        tokens=ROWS,
        log_every=log_every,
        console=io.StringIO(),
        json_lines=folder / "inside.jsonl",
        tensorboard=folder / "inside",
    ) as metrics:
        for window in range(windows):
            wall = cpu = 0.0
            held = []
            for _ in range(log_every):
                loss, norm = step(), step()
                held += [loss, norm]
                xm.wait_device_ops()
                start, start_cpu = time.perf_counter(), time.thread_time()
                metrics.step(loss, norm)
                cpu += time.thread_time() - start_cpu
                wall += time.perf_counter() - start
            if window:  # files are opened in the first
                walls.append(wall / log_every)
                cpus.append(cpu / log_every)
    return walls, cpus


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what metrics cost a step.")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    spmd.init(cpu_devices=DEVICES)
    step, dim = sized()
    folder = Path(tempfile.mkdtemp())
    loops = {"the loop alone": alone(step), "StepMetrics": with_metrics(step, folder)}
    times: dict[str, list[float]] = {name: [] for name in (*loops, "capture")}
    for number in range(args.rounds):
        names = list(loops)[:: -1 if number % 2 else 1]  # who is first may be slower
        for name in names:
            times[name].append(seconds_of(loops[name]))
        with profiling.capture(folder / "profile"):
            times["capture"].append(seconds_of(loops["the loop alone"]))
    loops["StepMetrics"].close()

    table = Table(
        title=f"Step of {LAYERS} layers {dim} wide on {DEVICES} CPU devices, ms;\n"
        f"measured here over {args.rounds} rounds taking turns"
    )
    for column in ("with", "fastest", "median", "ratio"):
        table.add_column(column, justify="left" if column == "with" else "right")
    base = times["the loop alone"]
    for name, taken in times.items():
        pairs = [a / b for a, b in zip(taken, base, strict=True)]
        table.add_row(
            name,
            f"{1e3 * min(taken):.1f}",
            f"{1e3 * statistics.median(taken):.1f}",
            f"{min(taken) / min(base):.3f} ({statistics.median(pairs):.3f})",
        )
    table.caption = "ratio of the fastest; in brackets the median of the rounds'"
    console = Console()
    console.print(table)

    table = Table(title="Inside of StepMetrics.step, us a step; measured here")
    for column in ("log_every", "fastest", "median", "CPU", f"of {WANTED_MS} ms"):
        table.add_column(column, justify="right")
    for log_every in (1, LOG_EVERY, 10 * LOG_EVERY):
        windows = max(4, args.rounds * LOG_EVERY // log_every)
        walls, cpus = inside(step, folder, windows, log_every)
        median = statistics.median(walls)
        seconds = (min(walls), median, statistics.median(cpus))
        cells = (f"{1e6 * s:.0f}" for s in seconds)
        table.add_row(str(log_every), *cells, f"{1e5 * median / WANTED_MS:.3f}%")
    table.caption = "of a window's steps together; the share is the median's"
    console.print(table)


if __name__ == "__main__":
    main()
