"""What `profiling.StepMetrics` costs a training step, and `profiling.capture`.

    python benchmarks/bench_metrics.py

One compiled step that takes about 50 ms here, in blocks of 20, with and without in
turns: the loop alone, which waits for the devices once in ten steps as `StepMetrics`
does; with `StepMetrics` that prints, writes JSON lines and for TensorBoard; and while a
profile is captured. The second table is the time inside of `StepMetrics.step` itself,
of which waiting for the devices is no part: the steps are over before it is called.
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


def inside(step: Step, folder: Path, windows: int) -> tuple[list[float], list[float]]:
    """Seconds of `StepMetrics.step` in the middle of a window, and at its end."""
    plain, ends = [], []
    with profiling.StepMetrics(
        tokens=ROWS,
        log_every=LOG_EVERY,
        console=io.StringIO(),
        json_lines=folder / "inside.jsonl",
        tensorboard=folder / "inside",
    ) as metrics:
        for number in range(1, windows * LOG_EVERY + 1):
            loss = step()
            xm.wait_device_ops()
            start = time.perf_counter()
            metrics.step(loss, loss)
            taken = time.perf_counter() - start
            if number > LOG_EVERY:  # files are opened in the first
                (plain if number % LOG_EVERY else ends).append(taken)
    return plain, ends


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

    plain, ends = inside(step, folder, args.rounds)
    table = Table(title="Inside of StepMetrics.step, us a step; measured here")
    for column in ("", "in a window", "at its end", "mean", f"of {WANTED_MS} ms"):
        table.add_column(column, justify="right" if column else "left")
    for name, of in (("fastest", min), ("median", statistics.median)):
        mean = (of(plain) * (LOG_EVERY - 1) + of(ends)) / LOG_EVERY
        cells = (f"{1e6 * seconds:.0f}" for seconds in (of(plain), of(ends), mean))
        table.add_row(name, *cells, f"{1e5 * mean / WANTED_MS:.3f}%")
    console.print(table)


if __name__ == "__main__":
    main()
