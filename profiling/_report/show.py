"""A `Schedule` as text for people, in 80 columns and more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling._compiling.compiled import CompileError, FlagValue
from profiling._compiling.outcome import Outcome
from profiling._compiling.setup import TPU_DEFAULTS, V5_DEFAULTS
from profiling._report.show_collectives import show_collectives
from profiling._report.show_exposed import show_exposed
from profiling._report.show_memory import show_memory
from profiling._report.show_words import (
    Tail,
    percent,
    print_indented,
    seconds_text,
    short,
)
from profiling._schedule import Schedule
from profiling._targets.show import memory_text
from profiling._targets.target import Target, count
from spmd._program.summary import bytes_text

_ONE = ("input ", "temporary ")  # what the name of a single holder begins with
_READ = "  read from "
_NOUNS = {"gpu": "GPU", "tpu": "chip", "cpu": "device"}


def show(schedule: Schedule, console: Console, *, top: int = 10) -> None:
    """Print a schedule.

    Args:
        schedule: The schedule.
        console: Where to; its width is used.
        top: Collectives and tensors to list.
    """
    show_head(schedule, console)
    show_memory(schedule, console, top=top)
    show_collectives(schedule, console, top=top)
    show_exposed(schedule, console, top=top)
    for warning in schedule.warnings:
        console.print(f"compiler's warning: {warning}", style="yellow", markup=False)
    for note in schedule.notes:
        _lines(console, f"note: {note}", style="dim")


def show_head(schedule: Schedule, console: Console) -> None:
    """Print what was compiled, by what, for what.

    Args:
        schedule: The schedule.
        console: Where to.
    """
    target = schedule.target
    title = Text(schedule.name, style="bold")
    if target is not None:
        title.append(f" on {target.text}")
    console.print(title)
    if schedule.source:
        room = console.width - len(_READ)
        console.print(Text(_READ + short(schedule.source, room)))
    if target is not None:
        _lines(console, f"  {_devices_text(target)}")
    if schedule.mesh is not None:
        _lines(console, f"  {schedule.mesh!r}")
    if (made := _made_by(schedule)) is not None:
        _lines(console, f"  {made}")
    if schedule.flags:
        _lines(console, f"  flags: {_flags_text(schedule.flags)}")
    line = schedule.timeline
    if line is not None:
        _lines(
            console,
            f"  estimate: a step takes {seconds_text(line.step_s)}, of which compute "
            f"waits {seconds_text(line.exposed_s)} for communication; MFU "
            f"{percent(line.mfu)}",
            style="bold",
        )


def _devices_text(target: Target) -> str:
    """Chips, devices where they are not the same number, hosts, and memory."""
    counts = [f"{count(target.num_chips, _NOUNS[target.kind])} ({target.chip.about})"]
    if target.num_chips != target.num_devices:
        counts.append(count(target.num_devices, "device"))
    counts.append(count(target.num_hosts, "host"))
    if target.num_slices > 1:
        counts.append(count(target.num_slices, "slice"))
    each = "" if target.hbm_bytes is None else f"; {memory_text(target)} a device"
    return ", ".join(counts) + each


def _made_by(schedule: Schedule) -> str | None:
    if schedule.compile_s is None:
        return None
    cached = schedule.compiled is not None and schedule.compiled.from_cache
    when = " (kept from an earlier run)" if cached else ""
    versions = schedule.versions.items()
    packages = ", ".join(f"{k} {v}" for k, v in versions if k != "compiler")
    return f"compiled by {packages} in {seconds_text(schedule.compile_s)}{when}"


def _value(value: FlagValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flags_text(flags: Mapping[str, FlagValue]) -> str:
    """Flags by name; the defaults are only counted."""
    defaults = {**TPU_DEFAULTS, **V5_DEFAULTS}
    own = {k: v for k, v in flags.items() if k not in defaults or defaults[k] != v}
    texts = [f"{k}={_value(v)}" for k, v in own.items()]
    if len(own) < len(flags):
        texts.append(f"the {len(flags) - len(own)} that torch_xla sets on TPUs")
    return ", ".join(texts)


def show_error(error: CompileError, console: Console) -> None:
    """Print why a compile failed; of one that does not fit, what holds the memory.

    Args:
        error: The error.
        console: Where to.
    """
    target = error.target
    if error.kind != "memory":
        console.print(Text(str(error), style="red"))
        return
    amount = ""
    if error.over_bytes:
        amount = f" by {bytes_text(error.over_bytes)} ({error.over_bytes} bytes)"
    console.print(
        Text(f"{target.text}: does not fit in memory{amount}", style="bold red")
    )
    if target.hbm_bytes is not None:
        _lines(console, f"  a device has {memory_text(target)}; what it would hold:")
    parts = {n: s for n, s in error.holders.items() if not n.startswith(_ONE)}
    items = {n: s for n, s in error.holders.items() if n not in parts}
    _print_sizes(parts, console, 2)
    if items:
        _lines(console, "  largest of these:")
        _print_sizes(items, console, 4)
    _lines(console, "  Shard more of it, or take more devices.")
    if error.compiled is None and error.words:
        console.print(Text(f"the compiler's words: {error.words}", style="dim"))


def _print_sizes(sizes: Mapping[str, int], console: Console, columns: int) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for name, size in sizes.items():
        table.add_row(bytes_text(size), Tail(name))
    print_indented(console, table, columns)


def show_side_by_side(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print a line for each of several targets.

    Args:
        outcomes: One for each target.
        console: Where to.
    """
    console.print(Text("Side by side", style="bold"), Text("(times: estimate)"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("target", no_wrap=True)
    for title in ("memory", "of", "on the wire", "step", "exposed", "MFU"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for outcome in outcomes:
        error = outcome.error
        words = {None: "", "memory": "does not fit"}.get(error and error.kind, "failed")
        figures = ["-"] * 6 if outcome.schedule is None else _figures(outcome.schedule)
        table.add_row(outcome.target, *figures, words)
    console.print(table)


def _figures(schedule: Schedule) -> Sequence[str]:
    capacity = schedule.memory.capacity_bytes
    line = schedule.timeline
    return (
        bytes_text(schedule.memory.total_bytes),
        "-" if capacity is None else bytes_text(capacity),
        bytes_text(schedule.wire_bytes),
        seconds_text(schedule.step_s),
        seconds_text(schedule.exposed_s),
        "-" if line is None else percent(line.mfu),
    )


def _lines(console: Console, text: str, style: str = "") -> None:
    """Print text that goes on below its first word where it is too long."""
    indent = len(text) - len(text.lstrip())
    print_indented(console, Text(text.strip(), style=style), indent)
