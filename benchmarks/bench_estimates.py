"""Estimated step times against measured ones: 56 distributed FFTs on 8 A100.

    python benchmarks/bench_estimates.py
    python benchmarks/bench_estimates.py --data ../shared/data/a100_fft

The folder has `runs.json` and the compiled HLO of each run (see the README beside it).
Bandwidths are those of `profiling/targets.yaml`, shares of them those of
`profiling/_timeline/efficiency.py`; no figure is a program's own. What was measured is
the wall time of a call, the fastest of ten, so the host's part is added to each
estimate: `DISPATCH_S`, which like `SECTOR_BYTES` was chosen with these runs in view.
There are no other runs that were kept back, so the errors are those of what the model
was made with.

Memory is compared too: what the HLO says of arguments, outputs and temporaries with
what the compiler reported, to the two decimals that it printed.

Exit status 1 if the median error is above 20% or fewer than nine in ten are within 40%,
2 without the folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from profiling import Target, Timeline, collective_ops, load_module
from profiling._memory.estimate import estimate
from profiling._timeline.simulate import timeline
from profiling._timeline.traffic import traffic

DATA = Path(__file__).resolve().parents[1] / ".." / "shared" / "data" / "a100_fft"
TARGET = "a100:1x8"
DISPATCH_S = 100e-6
"""A jitted call over 8 devices of one process until all are done, beside its kernels: a
round number. jax publishes none; straight lines through the times of the 256^3 and
512^3 programs meet a size of zero at 0.16 to 0.22 ms, of which estimated latencies are
0.05 to 0.1. With 0, 0.05, 0.15 and 0.2 ms the median error is 19, 16, 11 and 11%, and
95, 100, 100 and 100% are within 40%."""
WITHIN, MEDIAN, SHARE = 0.4, 0.2, 0.9


@dataclass(frozen=True, slots=True)
class Run:
    """One program: what was measured, and what is estimated.

    Attributes:
        name: Function, precision, shape and mesh.
        measured_s: Fastest wall time.
        timeline: Estimate of its step.
        strided_s: Part of it that reads memory with a stride.
        float64: Whether it computes in double precision.
        memory: Argument, output and temporary bytes, estimated.
        reported: The same as the compiler printed them.
    """

    name: str
    measured_s: float
    timeline: Timeline
    strided_s: float
    float64: bool
    memory: tuple[int, int, int]
    reported: tuple[str, str, str]

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return (self.timeline.step_s + DISPATCH_S) / self.measured_s

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return abs(self.ratio - 1)

    def left_out(self) -> str:
        """What the model leaves out that could explain the error; none is proven."""
        step = self.timeline.step_s
        found = []
        if self.ratio < 1 and self.strided_s > 0.2 * step:
            found.append(
                f"{self.strided_s / step:.0%} of the time reads with a stride: page "
                f"tables and rows of memory opened for one access are left out"
            )
        if self.ratio > 1 and self.strided_s > 0.2 * step:
            found.append(
                f"{self.strided_s / step:.0%} of the time reads with a stride: caches "
                f"that keep sectors for the next row are left out"
            )
        if self.ratio < 1 and self.float64:
            found.append(
                "double precision: that cuFFT has fewer threads at a time is left out"
            )
        if self.measured_s < 10 * DISPATCH_S:
            found.append(
                f"short: the host's part ({DISPATCH_S * 1e3:g} ms assumed) counts, and "
                f"what fits the cache is not read again"
            )
        return "; ".join(found) or "nothing that is known"


def read_runs(folder: Path) -> list[Run]:
    """Estimate every run of a folder."""
    rows = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    target = Target.parse(TARGET)
    console = Console(stderr=True)
    found = [_run(folder, row, target) for row in track(rows, "runs", console=console)]
    return sorted(found, key=lambda run: run.ratio)


def _run(folder: Path, row: Mapping[str, Any], target: Target) -> Run:
    module = load_module(folder / row["file"])
    line = timeline(module, target, collective_ops(module))
    strided = {
        i.name
        for i in module.entry.instructions
        if i.opcode == "fusion"
        and traffic(module, i, sectors=True).memory
        > traffic(module, i, sectors=False).memory
    }
    memory = estimate(module, "gpu")
    shape = f"{row['shape'][0]}^3" if len({*row["shape"]}) == 1 else str(row["shape"])
    mesh = "x".join(map(str, row["mesh"]))
    return Run(
        f"{row['function']:4} {row['precision']} {shape} {mesh}",
        row["min_ms"] / 1e3,
        line,
        sum(event.duration_s for event in line.events if event.name in strided),
        row["precision"] == "float64",
        (memory.argument_bytes, memory.output_bytes, memory.temp_bytes),
        (row["argument"], row["output"], row["temporary"]),
    )


def table(runs: list[Run]) -> Table:
    """One row for each run, the most underestimated first."""
    found = Table(
        title=f"Predicted (estimate for {TARGET}) over measured (public reports of "
        f"jaxdecomp-benchmarks, fastest of ten), ms"
    )
    found.add_column("program", no_wrap=True)
    for column in ("predicted", "measured", "ratio", "on wires", "strided"):
        found.add_column(column, justify="right", no_wrap=True)
    for run in runs:
        style = "" if run.error <= WITHIN else "red"
        found.add_row(
            run.name,
            f"{1e3 * (run.timeline.step_s + DISPATCH_S):.3g}",
            f"{1e3 * run.measured_s:.3g}",
            f"{run.ratio:.2f}",
            f"{1e3 * run.timeline.communication_s:.3g}",
            f"{1e3 * run.strided_s:.3g}",
            style=style,
        )
    return found


def as_printed(num_bytes: int) -> str:
    """Bytes as in the reports: ``512.00 MB``, ``1.00 GB``."""
    size, unit = float(num_bytes), "B"
    for larger in ("KB", "MB", "GB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.2f} {unit}"


def show_memory(runs: list[Run], console: Console) -> None:
    """Print how many figures are equal, and each that is not."""
    kinds = ("arguments", "outputs", "temporaries")
    equal = dict.fromkeys(kinds, 0)
    for run in runs:
        for kind, ours, theirs in zip(kinds, run.memory, run.reported, strict=True):
            equal[kind] += as_printed(ours) == theirs
            if as_printed(ours) != theirs:
                console.print(f"{run.name}: {kind} {as_printed(ours)}, not {theirs}")
    counts = ", ".join(f"{kind} {n} of {len(runs)}" for kind, n in equal.items())
    console.print(f"memory as reported: {counts}")


def main() -> int:
    """Print the table, what is far off and why, and whether the aim is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder with runs.json")
    folder = parser.parse_args().data
    if not (folder / "runs.json").is_file():
        print(
            f"{folder}: no runs.json there; give the folder of measured runs with "
            f"--data FOLDER",
            file=sys.stderr,
        )
        return 2
    runs = read_runs(folder)
    console = Console()
    console.print(table(runs))
    median = statistics.median(run.error for run in runs)
    share = sum(run.error <= WITHIN for run in runs) / len(runs)
    far = [run for run in runs if run.error > WITHIN]
    for run in far:
        console.print(f"{run.name}: {run.ratio:.2f}: {run.left_out()}")
    lowest, highest = runs[0], runs[-1]
    console.print(
        f"{len(runs)} programs: median error {median:.0%} (aim: {MEDIAN:.0%}), "
        f"{share:.0%} within {WITHIN:.0%} (aim: {SHARE:.0%}), ratios "
        f"{lowest.ratio:.2f} to {highest.ratio:.2f}"
    )
    console.print(f"furthest below: {lowest.name}: {lowest.left_out()}")
    show_memory(runs, console)
    return 0 if median <= MEDIAN and share >= SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
