"""Recipes: how a tensor gets its first values, recorded without making them.

An initialiser is run on meta tensors, and the operations that it does to them are noted
down. Later any piece of a tensor is made alone: it consists of tiles that lie on a grid
of their own, each with a random generator of its own, so that neither the mesh nor the
number of hosts changes a value.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TILE_ELEMENTS = 2**20
"""At most this many elements are made at a time."""

_SIDE = 1024  # of a tile of a matrix: a power of two divides most shards
_OVERWRITE = {"normal_", "uniform_", "fill_", "zero_", "exponential_", "log_normal_"}
_ELEMENTWISE = {
    *_OVERWRITE,
    *("mul_", "add_", "sub_", "div_", "clamp_", "clamp_min_", "clamp_max_"),
    *("erfinv_", "neg_", "abs_", "exp_", "log_", "sqrt_", "reciprocal_", "pow_"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One operation in place.

    Attributes:
        op: The operation.
        args: Its arguments after the tensor.
        kwargs: Its keyword arguments.
        part: Size, stride and offset of what it is done to; None for the whole.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: tuple[Any, ...] | None

    @property
    def name(self) -> str:
        """Such as ``normal_``."""
        return self.op.overloadpacket.__name__

    def do(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        """Do it.

        Args:
            tensor: Changed in place.
            generator: What random operations draw from.
        """
        place = tensor if self.part is None else tensor.as_strided(*self.part)
        names = {argument.name for argument in self.op._schema.arguments}
        drawn = {"generator": generator} if "generator" in names else {}
        self.op(place, *self.args, **{**self.kwargs, **drawn})


@dataclass(frozen=True, eq=False)
class Recipe:
    """How one tensor gets its first values.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        steps: What is done to it, in order.
        key: What the random numbers depend on: the seed and the tensor's name.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    steps: tuple[Step, ...]
    key: str

    def piece(self, index: tuple[slice, ...]) -> torch.Tensor:
        """Make one piece.

        Args:
            index: One slice per dim.

        Returns:
            A tensor on the CPU.
        """
        if not all(_is_elementwise(step) for step in self.steps):
            return _whole(self)[index].clone()
        box = [s.indices(d)[:2] for s, d in zip(index, self.shape, strict=True)]
        sides = tile_sides(self.shape)
        piece = torch.empty([b - a for a, b in box], dtype=self.dtype)
        numbers = [
            range(a // s, -(-b // s)) for (a, b), s in zip(box, sides, strict=True)
        ]
        for number in itertools.product(*numbers):
            tile = self._tile(number, sides)
            source, target = [], []
            for n, side, (a, b), size in zip(
                number, sides, box, tile.shape, strict=True
            ):
                start, stop = max(a, n * side), min(b, n * side + size)
                source.append(slice(start - n * side, stop - n * side))
                target.append(slice(start - a, stop - a))
            piece[tuple(target)] = tile[tuple(source)]
        return piece

    def _tile(self, number: tuple[int, ...], sides: tuple[int, ...]) -> torch.Tensor:
        zipped = zip(number, sides, self.shape, strict=True)
        tile = torch.empty([min(s, d - n * s) for n, s, d in zipped], dtype=self.dtype)
        generator = _generator(f"{self.key}:{number}")
        for step in self.steps:
            step.do(tile, generator)
        return tile


@dataclass(frozen=True, eq=False)
class StackedRecipe:
    """How a stack of tensors gets its first values: each as if it were alone.

    Attributes:
        layers: A recipe for each layer.
    """

    layers: tuple[Recipe, ...]

    def piece(self, index: tuple[slice, ...]) -> torch.Tensor:
        """Make one piece.

        Args:
            index: One slice per dim, that of the layers first.

        Returns:
            A tensor on the CPU.
        """
        return torch.stack([r.piece(index[1:]) for r in self.layers[index[0]]])


def tile_sides(shape: Iterable[int]) -> tuple[int, ...]:
    """Size of a tile in each dim.

    Args:
        shape: Of the tensor.

    Returns:
        For instance ``(1024, 1024)`` for a large matrix.

    Example:
        >>> tile_sides((8, 4096, 14336)), tile_sides((128, 3, 3, 3))
        ((1, 1024, 1024), (128, 3, 3, 3))
    """
    sizes = list(shape)
    left, sides = TILE_ELEMENTS, []
    for dim, size in enumerate(reversed(sizes)):
        cap = _SIDE if len(sizes) > 1 and dim == 0 else left
        side = max(1, min(size, cap, left))
        sides.append(side)
        left //= side
    return tuple(reversed(sides))


@functools.lru_cache(maxsize=1)
def _whole(recipe: Recipe) -> torch.Tensor:
    """For an initialiser that looks at a whole tensor, or writes into parts of it."""
    whole = torch.empty(recipe.shape, dtype=recipe.dtype)
    generator = _generator(recipe.key)
    for step in recipe.steps:
        step.do(whole, generator)
    return whole


def _generator(key: str) -> torch.Generator:
    digest = hashlib.sha256(key.encode()).digest()
    seed = int.from_bytes(digest[:8], "little") >> 1
    return torch.Generator().manual_seed(seed)


def _is_elementwise(step: Step) -> bool:
    scalars = not any(isinstance(a, torch.Tensor) and a.ndim for a in step.args)
    return step.part is None and step.name in _ELEMENTWISE and scalars


class Recorder(TorchDispatchMode):
    """Notes down what is done in place to tensors on meta.

    Args:
        tensors: The tensors, by name.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {_storage(t): name for name, t in tensors.items()}
        self._tensors = tensors
        self._steps: dict[str, list[Step]] = {name: [] for name in tensors}
        self.computed: set[str] = set()
        """Those that were given what was computed from tensors on meta."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        target = args[0] if args else None
        if func._schema.is_mutable and isinstance(target, torch.Tensor):
            name = self._names.get(_storage(target))
            if name is not None:
                self._note(name, func, target, args[1:], kwargs)
        return out

    def _note(
        self, name: str, func: Any, target: torch.Tensor, args: Any, kwargs: Any
    ) -> None:
        tensor = self._tensors[name]
        given = [*args, *kwargs.values()]
        if any(isinstance(a, torch.Tensor) and a.device.type == "meta" for a in given):
            self.computed.add(name)
            return
        is_whole = target.shape == tensor.shape and target.stride() == tensor.stride()
        part = (target.size(), target.stride(), target.storage_offset())
        kept = {k: v for k, v in kwargs.items() if k != "generator"}
        step = Step(func, tuple(args), kept, None if is_whole else part)
        steps = self._steps[name]
        if is_whole and step.name in _OVERWRITE:
            steps.clear()
            self.computed.discard(name)
        steps.append(step)

    def recipes(self, *, seed: int) -> Iterator[tuple[str, Recipe]]:
        """What was noted down.

        Args:
            seed: What the random numbers depend on.

        Yields:
            Name and recipe of each tensor that got values.
        """
        for name, tensor in self._tensors.items():
            steps = tuple(self._steps[name])
            if steps and name not in self.computed:
                shape = tuple(tensor.shape)
                yield name, Recipe(shape, tensor.dtype, steps, f"{seed}:{name}")


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
