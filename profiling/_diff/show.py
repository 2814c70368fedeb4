"""A `Diff` as text for people, in 80 columns and more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling._collectives.totals import Total
from profiling._diff.diff import Change, Diff
from profiling._diff.held import Held
from profiling._diff.limits import figure_text
from profiling._diff.side import Side
from profiling._findings.why import several
from profiling._report.show_words import print_indented, seconds_text, short
from spmd._program.summary import bytes_text

_TITLES = {
    "wire_bytes": "on the wire",
    "num_collectives": "collectives",
    "num_runs": "their runs",
    "memory_bytes": "memory",
    "argument_bytes": "  inputs",
    "temp_bytes": "  temporaries",
    "over_bytes": "does not fit by",
    "step_s": "step (estimate)",
    "exposed_s": "  exposed (estimate)",
}


def show_diff(diff: Diff, console: Console, *, top: int = 20) -> None:
    """Print what two steps do otherwise.

    Args:
        diff: The two.
        console: Where to; its width is used.
        top: Groups of collectives, and inputs, to list.
    """
    for name, side in (("A", diff.before), ("B", diff.after)):
        where = f" on {side.target}" if side.target else ""
        mesh = f", {side.mesh}" if side.mesh else ""
        console.print(Text.assemble((f"{name}  {side.name}{where}", "bold"), mesh))
    for note in diff.notes:
        print_indented(console, Text(f"note: {note}", style="dim"))
    console.print()
    if diff.is_empty:
        console.print("Nothing differs.")
        return
    console.print(_figures(diff.before, diff.after))
    console.print()
    _show_changes(diff.changes, console, top)
    if diff.held:
        console.print()
        _show_held(diff.held, console, top)


def _figures(before: Side, after: Side) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("one device", no_wrap=True)
    for title in ("A", "B", "difference"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, title in _TITLES.items():
        old, new = before.figures[name], after.figures[name]
        if name == "over_bytes" and not old and not new:
            continue
        texts = (figure_text(name, old), figure_text(name, new))
        table.add_row(title, *texts, _difference(name, old, new))
    return table


def _difference(name: str, old: float | None, new: float | None) -> str:
    if old is None or new is None:
        return ""
    if old == new:
        return "same"
    sign = "+" if new > old else "-"
    share = f" {sign}{abs(new / old - 1):.1%}" if old else ""
    return f"{sign}{figure_text(name, abs(new - old))}{share}"


def _show_changes(changes: Sequence[Change], console: Console, top: int) -> None:
    if not changes:
        console.print("Collectives: the same.")
        return
    counts = Counter(c.what for c in changes)
    words = ", ".join(f"{num} {what}" for what, num in counts.items())
    console.print(
        Text.assemble(("Collectives", "bold"), f" by role, axes and tensor: {words}")
    )
    shown = changes[:top]
    rows = [("", "on the wire", "runs", "exposed"), *(_cells(c) for c in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join((first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])))
        for first, *rest in rows
    ]
    console.print(Text(f"    {lines[0]}", style="bold"))
    by_heading: dict[str, list[tuple[Change, str]]] = {}
    for change, line in zip(shown, lines[1:], strict=True):
        by_heading.setdefault(_heading(change), []).append((change, line))
    for heading, own in by_heading.items():
        print_indented(console, Text(heading))
        for change, line in own:
            name = short(change.group.pattern or "?", console.width - len(line) - 6)
            console.print(Text(f"    {line}  {name}", style=_colour(change)))
    _rest(len(changes) - top, console)


def _heading(change: Change) -> str:
    a, b = change.group, change.to
    kind = a.kind if a.kind == b.kind else f"{a.kind} -> {b.kind}"
    axes = a.axes if a.axes == b.axes else f"{a.axes} -> {b.axes}"
    return f"{a.role}: {kind} over {axes}"


def _colour(change: Change) -> str:
    more = change.more_bytes
    return "" if more == 0 else "red" if more > 0 else "green"


def _cells(change: Change) -> tuple[str, str, str, str]:
    a, b = change.before, change.after
    return (
        change.what,
        _both(a, b, lambda t: bytes_text(t.step_wire_bytes)),
        _both(a, b, lambda t: str(t.num_runs)),
        _both(a, b, lambda t: seconds_text(t.exposed_s)),
    )


def _both(a: Total | None, b: Total | None, text: Callable[[Total], str]) -> str:
    """A's figure and B's, once where there is one or they are the same."""
    texts = [text(total) for total in (a, b) if total is not None]
    return " -> ".join(dict.fromkeys(texts))


def _show_held(held: Sequence[Held], console: Console, top: int) -> None:
    console.print(
        Text.assemble(("Inputs", "bold"), " that are split or sized otherwise")
    )
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for title in ("A", "B"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("split", "what"):
        table.add_column(title)
    alike: dict[tuple[str, str], list[Held]] = {}
    for one in held:
        alike.setdefault((one.role, _split(one)), []).append(one)
    for (role, split), own in list(alike.items())[:top]:
        table.add_row(
            bytes_text(sum(h.before_bytes for h in own)),
            bytes_text(sum(h.after_bytes for h in own)),
            Text(split),
            Text(f"{role} {several(_names(role, own), most=2)}"),
        )
    print_indented(console, table)
    _rest(len(alike) - top, console)


def _names(role: str, held: Sequence[Held]) -> list[str]:
    return [h.pattern.removeprefix(f"{role}.") for h in held]


def _split(one: Held) -> str:
    old, new = "; ".join(one.before) or "none", "; ".join(one.after) or "none"
    return old if old == new else f"{old} -> {new}"


def _rest(number: int, console: Console) -> None:
    if number > 0:
        print_indented(console, f"and {number} more (--top, --json)")
