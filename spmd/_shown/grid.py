"""Grids of pieces: how `visualize` lays a split tensor out in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from spmd._meshes.mesh import Mesh
from spmd._meshes.sharding import to_hlo
from spmd._meshes.spec import Spec, entry_axes, num_shards
from spmd._names.collapse import ranges

MAX_CELLS = 64
"""Pieces drawn at most; the rest is counted."""
MAX_DEVICES_WIDTH = 20
"""Characters of a device list before its middle is left out."""

# Only to tell neighbours apart at a glance: every cell also names its devices.
_COLORS = ("cyan", "yellow", "magenta", "green", "blue", "red")


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a grid: a split dim and its pieces; one blank piece for none."""

    title: str = ""
    labels: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Device texts as an array of outer sides, then rows, then columns."""

    outer: tuple[_Side, ...]
    rows: _Side
    columns: _Side
    cells: np.ndarray

    @property
    def label_width(self) -> int:
        return (
            max(map(len, (*self.rows.labels, self.rows.title, self.columns.title))) + 2
        )

    def num_columns(self, width: int) -> int:
        """How many columns fit beside the labels of the rows, at least one.

        Each costs its text, a blank on both sides and a line: in a width of 80 with
        labels of 18, texts of 9 leave (80 - 22) // 12 = 4, or 4 again if a column for
        the ellipsis is needed too: (80 - 22 - 4) // 12.
        """
        widest = max(map(len, (*self.columns.labels, *self.cells.flat)))
        room = width - self.label_width - 4
        if room // (widest + 3) >= len(self.columns.labels):
            return len(self.columns.labels)
        return max(1, (room - 4) // (widest + 3))


def draw(
    mesh: Mesh, spec: Spec, *, shape: tuple[int, ...] | None, width: int
) -> Iterator[RenderableType]:
    """Draw the pieces of a tensor that is split.

    Args:
        mesh: The mesh.
        spec: A normalised spec that splits some dim.
        shape: The tensor's shape, or None to number the pieces instead.
        width: Columns there are.

    Yields:
        A grid of the last two split dims for each piece of the split dims before
        them, and a line that counts what was left out.
    """
    layout = _layout(mesh, spec, shape, width)
    num_columns = layout.num_columns(width)
    left = total = layout.cells.size
    budget = MAX_CELLS
    for index in np.ndindex(*layout.cells.shape[:-2]):
        num_rows = min(len(layout.rows.labels), budget // num_columns)
        if num_rows == 0:
            break
        if layout.outer:
            sides = zip(layout.outer, index, strict=True)
            yield Text(", ".join(f"{s.title} {s.labels[i]}" for s, i in sides))
        yield _table(layout, index, num_rows, num_columns)
        left -= num_rows * num_columns
        budget -= num_rows * num_columns
    if left:
        yield Text(f"… {left:,} of {total:,} pieces are not shown")


def one_cell(text: str) -> Table:
    """Draw a tensor that is not split.

    Args:
        text: What to write into its only cell.

    Returns:
        The grid.
    """
    table = Table(show_header=False, box=box.SQUARE)
    table.add_column(overflow="fold")
    table.add_row(Text(text))
    return table


def _layout(
    mesh: Mesh, spec: Spec, shape: tuple[int, ...] | None, width: int
) -> _Layout:
    split = [d for d, n in enumerate(num_shards(mesh, spec)) if n > 1]
    sides = [_side(d, mesh, spec, shape) for d in split]
    tiles = to_hlo(mesh, spec).tiles().reshape(math.prod(num_shards(mesh, spec)), -1)
    texts = np.asarray([devices_text(row.tolist()) for row in tiles], dtype=object)
    if len(sides) > 1:
        counts = [len(s.labels) for s in sides]
        return _Layout(tuple(sides[:-2]), sides[-2], sides[-1], texts.reshape(counts))
    if split[0] == len(spec) - 1 > 0:
        across = _Layout((), _Side(), sides[0], texts.reshape(1, -1))
        if across.num_columns(width) >= len(texts):
            return across
    return _Layout((), sides[0], _Side(labels=("devices",)), texts.reshape(-1, 1))


def _side(dim: int, mesh: Mesh, spec: Spec, shape: tuple[int, ...] | None) -> _Side:
    names = entry_axes(spec[dim])
    ways = mesh.axis_size(names)
    title = f"dim {dim} ({', '.join(names)})"
    if shape is None:
        return _Side(title, tuple(f"{i + 1}/{ways}" for i in range(ways)))
    length = -(-shape[dim] // ways)
    return _Side(title, tuple(_label(shape[dim], length, i) for i in range(ways)))


def _label(size: int, length: int, i: int) -> str:
    start, stop = min(i * length, size), min((i + 1) * length, size)
    padding = length - (stop - start)
    if padding and start == stop:
        return "padding"
    return f"{start}:{stop}{f' +{padding} pad' if padding else ''}"


def devices_text(ids: Sequence[int]) -> str:
    """Write device ids in a cell's width.

    Args:
        ids: Device ids.

    Returns:
        Ranges; where they are many, the first two and the last with the count.

    Example:
        >>> devices_text([0, 1, 2, 3, 16, 17, 18, 19])
        '0-3,16-19'
        >>> devices_text(range(0, 4096, 8))
        '0,8,…,4088 (512)'
    """
    text = ranges(ids)
    runs = text.split(",")
    if len(text) <= MAX_DEVICES_WIDTH or len(runs) <= 3:
        return text
    return f"{runs[0]},{runs[1]},…,{runs[-1]} ({len(ids)})"


def _table(
    layout: _Layout, index: tuple[int, ...], num_rows: int, num_columns: int
) -> Table:
    rows, columns = layout.rows, layout.columns
    cut = num_columns < len(columns.labels)
    table = Table(box=box.SQUARE, header_style="")
    corner = [f"{columns.title} →"] * bool(columns.title)
    corner += [f"{rows.title} ↓"] * bool(rows.title)
    table.add_column(Text("\n".join(corner)), justify="right", no_wrap=True)
    for label in columns.labels[:num_columns]:
        table.add_column(Text(label), overflow="fold", vertical="middle")
    if cut:
        table.add_column("…")
    for i in range(num_rows):
        cells = [
            Text(text, style=_COLORS[(i * len(columns.labels) + j) % len(_COLORS)])
            for j, text in enumerate(layout.cells[index][i][:num_columns])
        ]
        table.add_row(Text(rows.labels[i]), *cells, *(["…"] * cut))
    return table
