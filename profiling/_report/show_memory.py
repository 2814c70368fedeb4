"""What a device holds, as text for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling._memory.use import HeldTensor, MemoryUse
from profiling._report.show_words import Tail, percent, print_indented
from profiling._schedule import Schedule
from profiling._targets.target import count
from spmd._program.summary import bytes_text

_PARTS = (("arguments", "█"), ("temporaries", "▓"), ("outputs", "▒"), ("free", "░"))
_BAR_ENDS = 4
_MOST = 5


def show_memory(schedule: Schedule, console: Console, *, top: int = 10) -> None:
    """Print the memory of a device against what it has.

    Args:
        schedule: The schedule.
        console: Where to.
        top: Tensors to list.
    """
    memory = schedule.memory
    origin = {
        "compiled": "compiled: the compiler's figures",
        "estimate": "estimate from the module",
    }[memory.origin]
    console.print()
    console.print(Text("Memory of a device", style="bold"), Text(f"({origin})"))
    _bar(memory, console)
    _sums(memory, console)
    _replicated(memory, console, top)
    _peak(memory, console, top)


def own_output_bytes(memory: MemoryUse) -> int:
    """Outputs that have memory of their own.

    Args:
        memory: What a device holds.

    Returns:
        Bytes.
    """
    return max(0, memory.output_bytes - memory.alias_bytes)


def _bar(memory: MemoryUse, console: Console) -> None:
    capacity = memory.capacity_bytes
    if capacity is None:
        _row(console, f"{bytes_text(memory.total_bytes)}; its capacity is not known")
        return
    used = memory.total_bytes
    sizes = (memory.argument_bytes, memory.temp_bytes, own_output_bytes(memory))
    width = console.width - _BAR_ENDS
    scale = width / max(capacity, used, 1)
    bar = "".join(
        mark * (max(1, round(size * scale)) if size else 0)
        for size, (_, mark) in zip(sizes, _PARTS, strict=False)
    )[:width]
    style = "red" if used > capacity else "green"
    _row(console, bar + _PARTS[-1][1] * (width - len(bar)), style=style)
    over = f", {used - capacity} bytes too much" if used > capacity else ""
    share = percent(used / capacity) if capacity else "-"
    legend = "  ".join(f"{mark} {name}" for name, mark in _PARTS)
    _row(console, f"{bytes_text(used)} of {bytes_text(capacity)} ({share}){over}")
    _row(console, legend, style="dim")


def _sums(memory: MemoryUse, console: Console) -> None:
    roles = sorted(memory.argument_bytes_by_role.items(), key=lambda item: -item[1])
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    held = ", ".join(f"{role} {bytes_text(size)}" for role, size in roles if size)
    kept = f"{bytes_text(memory.alias_bytes)} of them in place of arguments"
    table.add_row("arguments", bytes_text(memory.argument_bytes), held)
    table.add_row("outputs", bytes_text(memory.output_bytes), kept)
    table.add_row("temporaries", bytes_text(memory.temp_bytes), "")
    table.add_row("peak", bytes_text(memory.peak_bytes), "most in use at any time")
    print_indented(console, table)


def _replicated(memory: MemoryUse, console: Console, top: int) -> None:
    found = memory.replicated
    if not found:
        return
    whole = sum(t.device_bytes for t in found)
    _row(
        console,
        f"Held more than once: {count(len(found), 'input')}, {bytes_text(whole)} a "
        f"device; the largest:",
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(max_width=30)
    table.add_column()
    for tensor in found[: min(top, _MOST)]:
        table.add_row(
            bytes_text(tensor.device_bytes),
            tensor.role,
            f"{tensor.copies}x",
            Text(_shape(tensor)),
            Tail(tensor.name),
        )
    print_indented(console, table, 4)


def _shape(tensor: HeldTensor) -> str:
    """Shape with the axes that split it: ``f32[64/fsdp,16]``."""
    spec = tensor.spec or (None,) * len(tensor.shape)
    dims = []
    for size, axes in zip(tensor.shape, spec, strict=True):
        names = (axes,) if isinstance(axes, str) else axes or ()
        dims.append("/".join([str(size), *names]))
    return f"{tensor.dtype}[{','.join(dims)}]"


def _peak(memory: MemoryUse, console: Console, top: int) -> None:
    if not memory.at_peak:
        return
    whole = sum(b.num_bytes for b in memory.at_peak)
    _row(
        console,
        f"Known to live at the peak: {count(len(memory.at_peak), 'temporary value')}, "
        f"{bytes_text(whole)} of {bytes_text(memory.temp_bytes)}; the largest:",
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(max_width=30)
    table.add_column(no_wrap=True)
    table.add_column()
    for buffer in memory.at_peak[: min(top, _MOST)]:
        table.add_row(
            bytes_text(buffer.num_bytes),
            Tail(buffer.shape),
            buffer.phase,
            Tail(buffer.module or buffer.op_name or buffer.name),
        )
    print_indented(console, table, 4)


def _row(console: Console, text: str, style: str = "") -> None:
    print_indented(console, Text(text, style=style))
