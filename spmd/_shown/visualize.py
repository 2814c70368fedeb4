"""`visualize`: which device holds which part of a tensor, drawn in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from spmd._meshes.convert import mesh_from, spec_from
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, normalize_spec, num_shards, shard_shape
from spmd._names.collapse import ranges
from spmd._plans.table import spec_text
from spmd._shown.grid import draw, one_cell

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ShardingGrid:
    """A drawing of a sharding; ``rich`` prints it in the width there is.

    Attributes:
        mesh: The mesh, or None where no tensor is annotated.
        spec: Normalised.
        shape: The tensor's shape; None where only a spec was given.
    """

    mesh: Mesh | None
    spec: Spec
    shape: tuple[int, ...] | None

    @property
    def num_pieces(self) -> int:
        """Different parts of the tensor; 1 where it is replicated."""
        return math.prod(num_shards(self.mesh, self.spec)) if self.mesh else 1

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield Text(self._title())
        if self.mesh is None:
            yield one_cell("replicated (not annotated): every device holds all of it")
        elif self.num_pieces == 1:
            ids = ranges(self.mesh.device_ids)
            yield one_cell(f"replicated: all {self.mesh.size} devices ({ids})")
        else:
            width = options.max_width
            yield from draw(self.mesh, self.spec, shape=self.shape, width=width)

    def _title(self) -> str:
        shape = "tensor" if self.shape is None else str(list(self.shape))
        if self.mesh is None:
            return shape
        if self.num_pieces == 1:
            return f"{shape} on {self.mesh!r}"
        text = f"{shape} split {spec_text(self.spec)} on {self.mesh!r}: "
        text += f"{self.num_pieces} pieces"
        if self.shape is not None:
            text += f" of {list(shard_shape(self.shape, self.mesh, self.spec))}"
        copies = self.mesh.size // self.num_pieces
        return f"{text}, {copies} copies of each" if copies > 1 else text


def visualize(
    tensor_or_spec: torch.Tensor | Iterable[Any],
    mesh: Any = None,
    *,
    shape: Sequence[int] | None = None,
    console: Console | Literal[False] | None = None,
) -> ShardingGrid:
    """Draw which device holds which part of a tensor.

    Args:
        tensor_or_spec: An annotated tensor, or a spec of any form `spec_from` takes.
        mesh: The mesh of a spec; for a tensor, the mesh on which to express XLA's own
            sharding where it has no annotation of ours.
        shape: For a spec: the tensor's shape, to label the pieces with their slices.
        console: Where to print; default is stdout, ``False`` prints nothing.

    Returns:
        What was printed, for ``rich``.

    Raises:
        TypeError: A spec without a mesh, or a shape beside a tensor.
        ValueError: A spec that does not fit the mesh or the shape.

    Example:
        >>> grid = visualize(("fsdp", None), Mesh({"fsdp": 2}), shape=(8, 4))
        [8, 4] split (fsdp, None) on Mesh(fsdp=2): 2 pieces of [4, 4]
        ┌────────────────┬─────────┐
        │ dim 0 (fsdp) ↓ │ devices │
        ├────────────────┼─────────┤
        │            0:4 │ 0       │
        │            4:8 │ 1       │
        └────────────────┴─────────┘
    """
    if hasattr(tensor_or_spec, "shape") and hasattr(tensor_or_spec, "dtype"):
        if shape is not None:
            raise TypeError(
                f"visualize: shape={tuple(shape)} was given beside a tensor, which has "
                f"its own; leave it out"
            )
        grid = _of_tensor(tensor_or_spec, mesh)
    else:
        grid = _of_spec(tensor_or_spec, mesh, shape)
    if console is not False:
        (console or Console()).print(grid)
    return grid


def _of_tensor(tensor: Any, mesh: Any) -> ShardingGrid:
    from spmd._marking.mark import get_sharding

    known_mesh = None if mesh is None else mesh_from(mesh)
    shape = tuple(int(d) for d in tensor.shape)
    found = get_sharding(tensor, known_mesh)
    if found is None:
        return ShardingGrid(known_mesh, (None,) * len(shape), shape)
    return ShardingGrid(found.mesh, found.spec, shape)


def _of_spec(spec: Any, mesh: Any, shape: Sequence[int] | None) -> ShardingGrid:
    if mesh is None:
        raise TypeError(
            f"visualize: the spec {spec!r} names axes of a mesh, which is missing; "
            f"write visualize(spec, mesh)"
        )
    mesh = mesh_from(mesh)
    if shape is None:
        found = normalize_spec(spec, mesh, shape=None, name="visualize")
        return ShardingGrid(mesh, found, None)
    whole = tuple(int(d) for d in shape)
    return ShardingGrid(mesh, spec_from(spec, mesh, shape=whole), whole)
