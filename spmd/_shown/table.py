"""`sharding_table`: what each device holds of a model and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._marking.mark import Annotation, get_sharding
from spmd._meshes.spec import shard_shape
from spmd._names.collapse import collapse, star_form
from spmd._plans.table import spec_text


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """One tensor, and what each device holds of it.

    Attributes:
        name: The parameter's, buffer's or optimizer state's name.
        kind: ``parameter``, ``buffer`` or ``optimizer``.
        shape: Shape of the whole.
        shard_shape: Shape of each device's piece, padding included.
        spec: How it is split, as text; ``whole`` without an annotation.
        total_bytes: Bytes of the whole.
        device_bytes: Bytes on each device.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    spec: str
    total_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True)
class ShardingTable:
    """What each device holds of a model and its optimizer.

    Attributes:
        rows: One for each tensor: parameters, buffers, then optimizer state.
    """

    rows: tuple[HeldTensor, ...]

    @property
    def parameter_fraction(self) -> float:
        """Fraction of the parameters' bytes that each device holds."""
        return self.fraction("parameter")

    @property
    def optimizer_fraction(self) -> float:
        """Fraction of the optimizer state's bytes that each device holds."""
        return self.fraction("optimizer")

    def fraction(self, kind: str) -> float:
        """Fraction of the bytes of one kind that each device holds.

        Args:
            kind: ``parameter``, ``buffer`` or ``optimizer``.

        Returns:
            Bytes per device over bytes of the whole; 1.0 where there is nothing.
        """
        total = self.total_bytes(kind)
        held = sum(r.device_bytes for r in self.rows if r.kind == kind)
        return held / total if total else 1.0

    def total_bytes(self, kind: str) -> int:
        """Bytes of all tensors of one kind, unsplit.

        Args:
            kind: ``parameter``, ``buffer`` or ``optimizer``.

        Returns:
            Their sum.
        """
        return sum(r.total_bytes for r in self.rows if r.kind == kind)

    def print(self, console: Console | None = None) -> None:
        """Print the table.

        Args:
            console: Where to; default: standard output.
        """
        (console or Console()).print(self)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Parameters and buffers line by line, layers together; then the totals."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("parameter", overflow="fold")
        for column in ("shape", "spec", "per device"):
            table.add_column(column, no_wrap=options.max_width >= 100)
        for alike in self._groups():
            row = alike[0]
            cells = (str(list(row.shape)), row.spec, str(list(row.shard_shape)))
            for name in collapse([r.name for r in alike]):
                table.add_row(*map(Text, (name, *cells)))
        yield table
        for kind, what in (
            ("parameter", "parameters"),
            ("buffer", "buffers"),
            ("optimizer", "optimizer state"),
        ):
            total = self.total_bytes(kind)
            if total:
                held = round(total * self.fraction(kind))
                yield Text(
                    f"Each device holds {_size(held)} of {_size(total)} of {what} "
                    f"({self.fraction(kind):.1%})"
                )

    def _groups(self) -> list[list[HeldTensor]]:
        groups: dict[tuple[Any, ...], list[HeldTensor]] = {}
        for row in self.rows:
            if row.kind != "optimizer":
                key = (star_form(row.name), row.shape, row.spec)
                groups.setdefault(key, []).append(row)
        return list(groups.values())


def sharding_table(
    model: nn.Module, optimizer: Optimizer | None = None
) -> ShardingTable:
    """Say what each device holds of a model and its optimizer.

    Sizes follow from the annotations (computed, not measured): a tensor without one is
    whole on every device.

    Args:
        model: Any module.
        optimizer: Its optimizer; state counts once it exists.

    Returns:
        A table to print or to ask for fractions.
    """
    rows = [_held(n, "parameter", p) for n, p in model.named_parameters()]
    rows += [_held(n, "buffer", b) for n, b in model.named_buffers()]
    for name, parameter in model.named_parameters() if optimizer is not None else ():
        assert optimizer is not None
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                rows.append(_held(f"{key}[{name}]", "optimizer", value))
    return ShardingTable(tuple(rows))


def _held(name: str, kind: str, tensor: torch.Tensor) -> HeldTensor:
    annotation = get_sharding(tensor)
    shape = tuple(tensor.shape)
    piece = _piece(shape, annotation)
    size = tensor.element_size()
    return HeldTensor(
        name=name,
        kind=kind,
        shape=shape,
        shard_shape=piece,
        spec="whole" if annotation is None else spec_text(annotation.spec),
        total_bytes=math.prod(shape) * size,
        device_bytes=math.prod(piece) * size,
    )


def _piece(shape: tuple[int, ...], annotation: Annotation | None) -> tuple[int, ...]:
    if annotation is None:
        return shape
    return shard_shape(shape, annotation.mesh, annotation.spec)


def _size(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
