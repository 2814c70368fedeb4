"""A resolved plan as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from spmd._meshes.spec import Spec, SpecEntry, uneven_dims
from spmd._names.collapse import collapse, star_form

if TYPE_CHECKING:
    from spmd._meshes.mesh import Mesh
    from spmd._plans.resolve import InputRow, OutputRow, ResolvedPlan, Row


def spec_text(spec: Spec) -> str:
    """Write a spec without quotes.

    Args:
        spec: A normalised spec.

    Returns:
        Short text.

    Example:
        >>> spec_text((("replica", "fsdp"), None))
        '((replica, fsdp), None)'
    """

    def entry(value: SpecEntry) -> str:
        return f"({', '.join(value)})" if isinstance(value, tuple) else str(value)

    return f"({', '.join(map(entry, spec))}{',' if len(spec) == 1 else ''})"


def render(plan: ResolvedPlan, *, width: int) -> Iterator[RenderableType]:
    """Draw a resolved plan: a block for each pattern, or for several that say the same.

    Args:
        plan: The plan.
        width: Columns there are.

    Yields:
        The parameters, a summary, and the module outputs where there are any.
    """
    yield Text(f"{len(plan.parameters)} parameters on {plan.mesh!r}")
    blocks: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}
    shared = _shared(plan.parameters)
    for row in plan.parameters:
        blocks.setdefault(_heading(row, shared), [])
    for group in _alike(plan.parameters):
        shape, piece = str(list(group[0].shape)), _piece(group[0], plan.mesh)
        lines = [(name, shape, piece) for name in collapse([r.name for r in group])]
        blocks[_heading(group[0], shared)] += lines
    # Replicated for want of a pattern comes last: it is what one looks for.
    ordered = sorted(blocks.items(), key=lambda item: item[0] == _UNCOVERED)
    few = f"no pattern ({len(plan.uncovered)} of {len(plan.parameters)})"
    header = ("parameter", "shape", "per device")
    widths = _widths([header, *(line for lines in blocks.values() for line in lines)])
    yield _lines([header], widths, width, style="dim")
    for heading, lines in ordered:
        if heading == _UNCOVERED:
            yield Text(f"{few} -> replicated", style="bold yellow")
        else:
            yield Text(" -> ".join(heading), style="bold", overflow="fold")
        yield _lines(lines, widths, width)
    yield Text(_sizes(plan))
    for noun, rows in (("output", plan.outputs), ("input", plan.inputs)):
        if rows:
            yield Text(f"\n{len(rows)} module {noun}s")
            yield from _modules(rows, width)
    if plan.notes:
        yield Text("\nNotes", style="bold")
    for note in plan.notes:
        yield Text(f"- {note}")


_UNCOVERED = ("", "")


def _heading(row: Row, shared: Set[tuple[str | None, Spec]]) -> tuple[str, ...]:
    if row.pattern is None:
        return _UNCOVERED
    if (row.source, row.spec) in shared and _is_plain(row.pattern, row.name):
        return str(row.source), spec_text(row.spec)
    return f"{row.source}: {row.pattern}", spec_text(row.spec)


def _shared(rows: Iterable[Row]) -> set[tuple[str | None, Spec]]:
    """Sources and specs of several patterns each, whose names say all of them."""
    found: dict[tuple[str | None, Spec], set[str]] = {}
    for row in rows:
        if row.pattern is not None and _is_plain(row.pattern, row.name):
            found.setdefault((row.source, row.spec), set()).add(row.pattern)
    return {key for key, patterns in found.items() if len(patterns) > 1}


def _is_plain(pattern: str, name: str) -> bool:
    """Whether a pattern is a name, numbers aside, so that it need not be shown."""
    return pattern in (name, star_form(name))


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that differ in the integers of their names only."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (star_form(row.name), row.shape, row.spec, row.pattern, row.source)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _piece(row: Row, mesh: Mesh) -> str:
    padded = uneven_dims(row.shape, mesh, row.spec)
    return f"{list(row.shard_shape)}{' padded' if padded else ''}"


def _widths(lines: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    return tuple(max(map(len, column)) for column in zip(*lines, strict=True))


def _lines(
    lines: Sequence[tuple[str, ...]],
    widths: tuple[int, ...],
    width: int,
    *,
    style: str = "",
) -> Table:
    """Columns of the same widths in every block; the names fold if they must."""
    first = min(widths[0], max(12, width - sum(widths[1:]) - _GAP * len(widths)))
    table = Table.grid(padding=(0, _GAP, 0, 0))
    table.add_column(width=0)
    table.add_column(width=first, overflow="fold")
    for column in widths[1:]:
        table.add_column(width=column, overflow="fold")
    for line in lines:
        table.add_row("", *(Text(cell, style=style) for cell in line))
    return table


_GAP = 2


def _modules(
    rows: Sequence[OutputRow | InputRow], width: int
) -> Iterator[RenderableType]:
    """A block for each source and spec; patterns only where names do not tell them."""
    groups: dict[tuple[Any, ...], list[OutputRow | InputRow]] = {}
    for row in rows:
        key = (star_form(row.name), row.index, row.spec, row.pattern, row.source)
        groups.setdefault(key, []).append(row)
    blocks: dict[str, list[str]] = {}
    for group in groups.values():
        row = group[0]
        index = "" if row.index is None else f"[{row.index}]"
        plain = _is_plain(row.pattern.removesuffix(index), row.name)
        source = row.source if plain else f"{row.source}: {row.pattern}"
        names = collapse([r.name for r in group])
        block = blocks.setdefault(f"{source} -> {spec_text(row.spec)}", [])
        block += [f"{name or '(root)'}{index}" for name in names]
    for heading, names in blocks.items():
        yield Text(heading, style="bold", overflow="fold")
        lines = [(name,) for name in names]
        yield _lines(lines, _widths(lines), width)


def _sizes(plan: ResolvedPlan) -> str:
    """How much of the model each device holds, in bytes where they are known."""
    rows = plan.parameters
    in_bytes = bool(rows) and all(row.itemsize is not None for row in rows)
    total = held = 0
    for row in rows:
        size = (row.itemsize or 1) if in_bytes else 1
        total += row.num_elements * size
        held += row.num_shard_elements * size
    unit = "bytes" if in_bytes else "elements"
    share = held / total if total else 1.0
    return f"Each device holds {held:,} of {total:,} {unit} ({share:.1%})"
