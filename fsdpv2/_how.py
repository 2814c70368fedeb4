"""How the gradient of a weight is made: kept in parts, or reduced as it comes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fsdpv2._keeper import Keeper
from fsdpv2._made import Made
from spmd._marking.mark import get_sharding
from spmd._meshes.spec import entry_axes


@dataclass(frozen=True, slots=True)
class How:
    """How a weight's gradient is made.

    Attributes:
        dtype: What it is reduced in.
        into: Where it is added up before, or None.
    """

    dtype: torch.dtype
    into: Keeper | None

    def widened(self) -> How:
        """The same in float32 at least, as norms are computed."""
        return How(torch.promote_types(self.dtype, torch.float32), self.into)

    def keep(
        self,
        made: Made,
        values: Sequence[torch.Tensor],
        make: Callable[..., torch.Tensor],
        *,
        axes: tuple[str, ...] | None = None,
        columns: Sequence[tuple[str, ...] | None] | None = None,
    ) -> bool:
        """Add up a gradient in parts, if that may be.

        Args:
            made: Of which weights that is made which has it.
            values: What it is made of, [rows, ...].
            make: Makes parts of it in a dtype, [devices, *shape], from values as
                [devices, rows / devices, ...].
            axes: Axes over which they are parts, made of values as they are; None for
                those of the batch.
            columns: Of each value, the axes that are to split its last dim.

        Returns:
            Whether it is added up; else it is to be made and reduced.
        """
        into, masters = self.into, made.masters
        if into is None or not all(into.takes(m, *values, axes=axes) for m in masters):
            return False
        kept = functools.reduce(torch.promote_types, (m.dtype for m in masters))
        if axes is None:
            columns = columns or [None] * len(values)
            pairs = zip(values, columns, strict=True)
            values = [into.split(v, columns=c) for v, c in pairs]
        parts = make(*values, dtype=torch.promote_types(self.dtype, kept))
        if not made.is_weight:
            into.stay(parts)
        for master, its in zip(masters, made.undo(parts), strict=True):
            into.add(master, its, wire=self.dtype, axes=axes)
        return True

    def gradients(
        self,
        made: Made,
        wanted: Sequence[bool],
        values: Sequence[torch.Tensor],
        by_device: Callable[..., torch.Tensor],
        whole: Callable[..., torch.Tensor],
        *,
        columns: Sequence[tuple[str, ...] | None] | None = None,
    ) -> tuple[torch.Tensor | None, ...]:
        """Keep the gradients of weights, or make them.

        Args:
            made: Of which weights that is made which rows meet.
            wanted: Whether each is asked for.
            values: What the gradient is made of, [rows, ...].
            by_device: See `keep`.
            whole: Makes all of it in a dtype, of values as they are.
            columns: See `keep`.

        Returns:
            None for those that are kept or not wanted.
        """
        keeps = made.is_weight and columns is not None and not any(columns)
        keep = self.keep_sum if keeps else functools.partial(self.keep, columns=columns)
        if not any(wanted) or keep(made, values, by_device):
            return (None,) * len(made.masters)
        return tuple(made.gradients(whole(*values, dtype=self.dtype)))

    def keep_sum(
        self,
        made: Made,
        values: Sequence[torch.Tensor],
        make: Callable[..., torch.Tensor],
    ) -> bool:
        """The same of a sum over rows and their sequence, which axes may split too.

        Args:
            made: Of which weights that is made which has it.
            values: The gradient [rows, seq, width] that it is made of, and what else.
            make: Sums over all but the first dim and the last.
        """
        found = None if self.into is None else self.into.split_sequence(*values)
        if found is None or any(_splits(m, found[0]) for m in made.masters):
            return self.keep(made, values, make)
        axes, parts = found
        return self.keep(made, (), functools.partial(make, *parts), axes=axes)


def _splits(weight: torch.Tensor, axes: Sequence[str]) -> bool:
    """Whether one of the axes, but those of the batch, splits a weight."""
    known = get_sharding(weight)
    if known is None:
        return False
    used = {a for entry in known.spec for a in entry_axes(entry)}
    return bool(used & {*axes} - {*known.mesh.data_axes})
