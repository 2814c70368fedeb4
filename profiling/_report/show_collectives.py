"""What moves in a step, as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling._collectives.collective import Collective
from profiling._collectives.totals import By, by_axes_and_role
from profiling._report.show_words import Tail, percent, print_indented, seconds_text
from profiling._schedule import Schedule
from spmd._program.summary import bytes_text

ROOMY = 100
"""Columns from which on there is room between columns."""
ONE_LINE = 140
"""Columns from which on a collective has one line."""


def show_collectives(schedule: Schedule, console: Console, *, top: int = 10) -> None:
    """Print sums by axes and role, and the largest collectives.

    Args:
        schedule: The schedule.
        console: Where to.
        top: Collectives to list.
    """
    console.print()
    console.print(
        Text("What moves", style="bold"),
        Text(f"({len(schedule.collectives)} collectives, counted in the module)"),
    )
    if not schedule.collectives:
        console.print("  Nothing: the module has no collectives.")
        return
    print_indented(console, _by_axes_and_role(schedule, console))
    for by in ("phase", "kind"):
        _sums(schedule, by, console)
    console.print(
        f"  role unknown: {percent(schedule.unknown_share)} of the bytes on the wire"
    )
    largest = schedule.largest(top)
    console.print()
    console.print(
        Text(f"The {len(largest)} largest" if len(largest) > 1 else "The largest"),
        Text("(bytes a device sends in a step)"),
        style="bold",
    )
    print_indented(console, listed(largest, console))


def _by_axes_and_role(schedule: Schedule, console: Console) -> Table:
    table = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, 1),
        collapse_padding=console.width < ROOMY,
    )
    table.add_column("axes", vertical="bottom")
    for title in ("role", "link"):
        table.add_column(title, no_wrap=True)
    titles = ("number", "runs", "on the\nwire", "share", "exposed\nestimate")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    whole = schedule.wire_bytes
    for (axes, role, link), total in by_axes_and_role(schedule.collectives, _over):
        table.add_row(
            Tail(axes),
            role,
            link or "-",
            str(total.num_collectives),
            str(total.num_runs),
            bytes_text(total.step_wire_bytes),
            percent(total.step_wire_bytes / whole if whole else 0.0),
            seconds_text(total.exposed_s),
        )
    table.add_row(
        "all",
        "",
        "",
        str(len(schedule.collectives)),
        str(sum(c.num_runs for c in schedule.collectives)),
        bytes_text(whole),
        "",
        seconds_text(schedule.exposed_s),
        style="bold",
    )
    return table


def _sums(schedule: Schedule, by: By, console: Console) -> None:
    parts = [
        f"{t.key or 'unknown'} {bytes_text(t.step_wire_bytes)}"
        for t in schedule.totals(by)
    ]
    print_indented(console, Text(f"by {by}: {', '.join(parts)}"))


def listed(found: Sequence[Collective], console: Console) -> Table:
    """A table of collectives, each with where it comes from.

    Args:
        found: The collectives.
        console: Its width decides whether a row has one line or two.

    Returns:
        The table.
    """
    wide = console.width >= ONE_LINE
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for title in ("on the\nwire", "runs", "exposed\nestimate"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("what", "of what, where") if wide else ("what",):
        table.add_column(title, vertical="bottom")
    for c in found:
        phase = f", {c.phase}" if c.phase else ""
        what = f"{c.kind} {_over(c)}: {c.role}{phase}"
        cells = [Tail(what), Tail(where(c))] if wide else [Tail(what, where(c))]
        figures = (bytes_text(c.step_wire_bytes), str(c.num_runs))
        table.add_row(*figures, seconds_text(c.exposed_s), *cells)
    return table


def _over(collective: Collective) -> str:
    """Axes; where no axes make its groups, how large they are."""
    return ", ".join(collective.axes) or f"groups of {collective.group_size}"


def where(collective: Collective) -> str:
    """What a collective is for: tensor and source line.

    Args:
        collective: The collective.

    Returns:
        The module where there is no tensor; the instruction where there is neither.
    """
    has_tensor = bool(collective.moved[0].tensor)
    name = collective.tensor if has_tensor else collective.module
    file = collective.source.rpartition("/")[2]
    parts = [name or collective.name, file]
    return " · ".join(filter(None, parts))
