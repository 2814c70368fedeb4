"""What compute waits for, as text for people."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from profiling._report.show_collectives import listed
from profiling._report.show_words import (
    mfu_flops_text,
    percent,
    print_indented,
    seconds_text,
)
from profiling._schedule import Schedule


def show_exposed(schedule: Schedule, console: Console, *, top: int = 10) -> None:
    """Print the time of a step, and the collectives that compute waits for.

    Args:
        schedule: The schedule.
        console: Where to.
        top: Collectives to list.
    """
    line = schedule.timeline
    if line is None:
        return
    console.print()
    console.print(Text("Time of a step", style="bold"), Text("(estimate)"))
    rows = (
        f"{seconds_text(line.step_s)} = compute {seconds_text(line.compute_s)} + "
        f"exposed communication {seconds_text(line.exposed_s)}",
        f"communication {seconds_text(line.communication_s)}, of which "
        f"{seconds_text(line.hidden_s)} is behind compute; a matmul runs meanwhile for "
        f"{percent(line.matmul_overlap_share)} of the bytes on the wire",
        f"MFU {percent(line.mfu)}: {mfu_flops_text(line.flops, line.model_flops)}, "
        f"whose peak is {line.peak_flops / 1e12:.4g} TFLOP/s",
    )
    for row in rows:
        print_indented(console, Text(row))
    found = schedule.most_exposed(top)
    console.print()
    if not found:
        console.print("Nothing is exposed: compute never waits.", style="bold")
        return
    console.print(Text("Exposed longest", style="bold"), Text("(estimate)"))
    print_indented(console, listed(found, console))
