"""What a model holds otherwise than a checkpoint has it: in pieces, or stacked.

A checkpoint does not know that `spmd.auto_plan` took a fused weight apart, or that
equal layers hold their tensors stacked: it has one tensor of each name that the model
had, so that a model on another mesh, or one that is not sharded, reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._fused.state import pieces_of
from spmd._program.value import STACKED
from spmd._stacked.layers import layer_names
from spmd.checkpoint._dcp import Region
from spmd.checkpoint._places import (
    Places,
    join,
    model_places,
    named_modules,
    optimizer_names,
)
from spmd.checkpoint._write import Box

Shape = tuple[int, ...]

MODEL, OPTIMIZER = "model.", "optimizer."

SINGLE = frozenset({"step", "mu_product", "eta", "mu"})
"""State of torch's optimizers that is one number, even of a parameter of one number."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a held tensor that is all or part of a saved one.

    Attributes:
        saved: What the saved one is called.
        saved_shape: Its shape.
        start: Where in it the part begins.
        row: Where in the held tensor, along a first dim that the saved one does not
            have; None where it has all dims.
    """

    saved: str
    saved_shape: Shape
    start: Shape
    row: int | None = None

    @property
    def is_first(self) -> bool:
        """Whether it begins where the saved tensor does."""
        return not any(self.start)

    def moved(self, offset: Sequence[int]) -> Shape:
        """An offset in the saved tensor.

        Args:
            offset: In the part.
        """
        return tuple(o + s for o, s in zip(offset, self.start, strict=True))


@dataclass(frozen=True, slots=True)
class Holding:
    """How a held tensor is made of saved ones.

    Attributes:
        shape: Of the held tensor.
        parts: In order: one for each row of a stack, else one.
        stack: What the list of layers is called whose tensors it stacks, if any.
    """

    shape: Shape
    parts: tuple[Part, ...]
    stack: str = ""

    def cuts(
        self, offset: Sequence[int], shape: Sequence[int]
    ) -> Iterator[tuple[Part, Region, int | EllipsisType]]:
        """Cut a box of the held tensor where its parts end.

        Args:
            offset: Where the box begins.
            shape: Its shape.

        Yields:
            Each part that the box has some of, the box in the saved tensor, and what
            indexes it in the box.
        """
        offset, shape = tuple(offset), tuple(shape)
        for part in self.parts:
            if part.row is None:
                yield part, (part.moved(offset), shape), ...
            elif offset[0] <= part.row < offset[0] + shape[0]:
                yield part, (part.moved(offset[1:]), shape[1:]), part.row - offset[0]

    def state(self, entry: str) -> Holding:
        """The same of an optimizer's state.

        Args:
            entry: Such as ``exp_avg``.
        """
        return replace(
            self,
            parts=tuple(
                replace(p, saved=f"{OPTIMIZER}{p.saved.removeprefix(MODEL)}.{entry}")
                for p in self.parts
            ),
        )


Holdings = Mapping[str, Holding]
"""By what the held tensor is called; others are saved as they are."""


def holdings_of(model: nn.Module, prefix: str = "") -> dict[str, Holding]:
    """What a model holds otherwise than a checkpoint has it.

    Args:
        model: Any module, wrapped or not.
        prefix: First part of the names.

    Returns:
        By name.
    """
    lists: dict[str, tuple[str, tuple[str, ...]]] = {}
    cut: dict[str, tuple[str, int, int, int]] = {}
    for path, module in named_modules(model):
        path = join(prefix, path)
        if layers := layer_names(module):
            lists[f"{join(path, STACKED)}."] = path, layers
        for held in pieces_of(module):
            total = sum(held.sizes.values())
            for name, start, _ in held.ranges():
                cut[join(path, name)] = join(path, held.name), held.dim, start, total
    if not lists and not cut:
        return {}
    found = {}
    for place in model_places(model, prefix):
        inside = next((p for p in lists if place.key.startswith(p)), "")
        if inside or place.key in cut:
            shape = tuple(place.read().shape)
            part = _part(place.key, shape[1:] if inside else shape, cut)
            found[place.key] = Holding(shape, (part,))
        if inside:
            stack, layers = lists[inside]
            found[place.key] = _stacked(found[place.key], inside, stack, layers)
    return found


def all_holdings(model: nn.Module, extra: Mapping[str, Any]) -> dict[str, Holding]:
    """What a model, and the modules that are saved besides, hold otherwise.

    Args:
        model: Any module.
        extra: Modules and other things by name.

    Returns:
        By the keys of a checkpoint.
    """
    found = holdings_of(model, "model")
    for name, value in extra.items():
        if isinstance(value, nn.Module):
            found.update(holdings_of(value, f"extra.{name}"))
    return found


def _part(
    name: str, shape: Shape, cut: Mapping[str, tuple[str, int, int, int]]
) -> Part:
    if name not in cut:
        return Part(name, shape, (0,) * len(shape))
    whole, dim, start, total = cut[name]
    starts = tuple(start if i == dim else 0 for i in range(len(shape)))
    return Part(whole, (*shape[:dim], total, *shape[dim + 1 :]), starts)


def _stacked(one: Holding, inside: str, stack: str, layers: Sequence[str]) -> Holding:
    """One for each layer, of a holding that speaks of the layer that holds all."""
    (part,) = one.parts
    rest = part.saved.removeprefix(inside)
    parts = (
        replace(part, saved=f"{join(stack, layer)}.{rest}", row=i)
        for i, layer in enumerate(layers)
    )
    return Holding(one.shape, tuple(parts), stack)


def names_of(name: str, holdings: Holdings) -> list[str]:
    """What a tensor is called in a checkpoint.

    Args:
        name: Of a held tensor.
        holdings: From `holdings_of`.

    Returns:
        As many names as it has parts.
    """
    holding = holdings.get(name)
    return [name] if holding is None else [part.saved for part in holding.parts]


def saved_names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Names of the parameters of each group of an optimizer, as they are saved.

    Args:
        model: Whose names they have.
        optimizer: The optimizer.

    Returns:
        Each name once: a whole where its first piece is, and layers one after another.
    """
    holdings = holdings_of(model)

    def stack_of(name: str) -> str:
        return holdings[name].stack if name in holdings else ""

    found = []
    for group in optimizer_names(model, optimizer):
        names: list[str] = []
        for stack, run in itertools.groupby(group, stack_of):
            tables = [names_of(name, holdings) for name in run]
            for of_one in zip(*tables, strict=True) if stack else tables:
                names += of_one
        found.append(list(dict.fromkeys(names)))
    return found


def saved_shapes(places: Places, holdings: Holdings) -> dict[str, Shape]:
    """What a checkpoint has to have.

    Args:
        places: Tensors of a training.
        holdings: By the same keys.

    Returns:
        Shapes by the first key of each, in the order of the places.
    """
    found: dict[str, Shape] = {}
    for place in places.first:
        holding = holdings.get(place.key)
        if holding is None:
            found[place.key] = tuple(place.read().shape)
        else:
            found.update({part.saved: part.saved_shape for part in holding.parts})
    return found


def saved_aliases(aliases: Mapping[str, str], holdings: Holdings) -> dict[str, str]:
    """Further keys of tied tensors, as a checkpoint has them.

    Args:
        aliases: Further keys of held tensors, and the first one's.
        holdings: By the same keys.
    """
    return {
        alias: key
        for one, other in aliases.items()
        for alias, key in zip(
            names_of(one, holdings), names_of(other, holdings), strict=True
        )
    }


def as_saved(boxes: Iterable[Box], holdings: Holdings) -> Iterator[Box]:
    """Boxes of held tensors as boxes of saved ones.

    State of an optimizer that goes number by number with a parameter is cut as that is,
    and a single number (a count of steps) is that of each whole. Other state stays
    under the name of what is held.

    Args:
        boxes: Of any tensors, by their keys.
        holdings: By key.

    Yields:
        Boxes.
    """
    for box in boxes:
        holding = _holding(box.key, holdings)
        if holding is None:
            yield box
        elif box.shape == holding.shape:
            cuts = holding.cuts(box.offset, box.data.shape)
            for part, (offset, _), at in cuts:
                yield Box(part.saved, part.saved_shape, offset, box.data[at])
        elif box.shape:
            yield box
        else:
            for part in holding.parts:
                if part.is_first:
                    yield replace(box, key=part.saved)


def _holding(key: str, holdings: Holdings) -> Holding | None:
    if key in holdings or not key.startswith(OPTIMIZER):
        return holdings.get(key)
    name, _, entry = key.removeprefix(OPTIMIZER).rpartition(".")
    holding = holdings.get(MODEL + name)
    return None if holding is None else holding.state(entry)
