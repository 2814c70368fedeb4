"""What a fused layer returns: a concatenation that still has its parts.

A concatenation of q, k and v that each are split over ``tensor`` is split by nothing: a
device's share of it holds pieces of one or two of them. Whoever takes it apart again,
by ``split``, ``chunk``, an index or a view, gets the parts as they are, and what nobody
reads of the concatenation is dropped from the program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch


@final
class PartsOutput(torch.Tensor):
    """A tensor that hands out what it is a concatenation of.

    An operation that does not take it apart sees the concatenation, and gives a plain
    tensor.

    Attributes:
        parts: What it is made of.
        along: The dim along which.
    """

    parts: tuple[torch.Tensor, ...]
    along: int
    _versions: tuple[int, ...]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Take apart what can be, and leave the rest to torch."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            taken = _TAKE_APART.get(getattr(func, "__name__", ""))
            if taken is not None and args and isinstance(args[0], PartsOutput):
                if _own_version(args[0]) == args[0]._versions[0]:
                    try:
                        found = taken(args[0], *args[1:], **kwargs)
                    except (TypeError, ValueError, IndexError):
                        found = NotImplemented  # torch says what is wrong
                    if found is not NotImplemented:
                        return found
            return func(*map(_up_to_date, args), **kwargs)


def joined(parts: Sequence[torch.Tensor], along: int = -1) -> torch.Tensor:
    """Concatenate tensors, and remember what they were.

    Args:
        parts: Of one shape but for the dim `along`.
        along: The dim.

    Returns:
        A `PartsOutput`; the part itself if there is one only.
    """
    if len(parts) == 1:
        return parts[0]
    whole = torch.cat(list(parts), along)
    if type(whole) is not torch.Tensor:
        return whole  # one of torch's tracers; it looks at types
    found = whole.as_subclass(PartsOutput)
    with torch._C.DisableTorchFunctionSubclass():
        found.parts = tuple(parts)
        found.along = along % whole.ndim
        found._versions = (_own_version(found), *map(_own_version, parts))
    return found


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What has to be annotated of a tensor: its parts, since it is not read itself.

    Args:
        tensor: Any tensor.

    Returns:
        The tensor itself, if it has no parts.
    """
    if not isinstance(tensor, PartsOutput):
        return (tensor,)
    return tuple(itertools.chain(*map(parts_of, tensor.parts)))


def _own_version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to, as far as torch counts it."""
    return 0 if tensor.is_inference() else tensor._version


def _up_to_date(value: Any) -> Any:
    """The concatenation, made again if a part was written to since."""
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(_up_to_date, value))
    if not isinstance(value, PartsOutput):
        return value
    whole, *others = value._versions
    if [*map(_own_version, value.parts)] == others:
        return value
    if _own_version(value) != whole:
        raise RuntimeError(
            f"the output {list(value.shape)} of a fused layer was written to, and so "
            f"was a part that was taken from it; write to one of them only"
        )
    return torch.cat(value.parts, value.along)


def _range(x: PartsOutput, start: int, stop: int) -> torch.Tensor:
    """A stretch of the concatenation, of whole parts where it can be."""
    pieces, at = [], 0
    for part in x.parts:
        size = part.shape[x.along]
        low, high = max(start - at, 0), min(stop - at, size)
        if high > low:
            whole = (low, high) == (0, size)
            pieces.append(part if whole else part.narrow(x.along, low, high - low))
        at += size
    if not pieces:
        return x.parts[0].narrow(x.along, 0, 0)
    return joined(pieces, x.along)


def _is_along(x: PartsOutput, dim: int) -> bool:
    return -x.ndim <= dim < x.ndim and dim % x.ndim == x.along


def _split(x: PartsOutput, split_size: Any = None, dim: int = 0, **more: Any) -> Any:
    sizes = more.pop("split_size_or_sections", split_size)
    if more or not _is_along(x, dim):
        return NotImplemented
    total = x.shape[x.along]
    if isinstance(sizes, int):
        if sizes < 1:
            return NotImplemented
        sizes = [min(sizes, total - at) for at in range(0, total, sizes)]
    if sum(sizes) != total or min(sizes) < 0:
        return NotImplemented
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(_range(x, e - n, e) for e, n in zip(ends, sizes, strict=True))


def _chunk(x: PartsOutput, chunks: int, dim: int = 0) -> Any:
    if not _is_along(x, dim) or chunks < 1:
        return NotImplemented
    return _split(x, -(-x.shape[x.along] // chunks), dim)


def _narrow(x: PartsOutput, dim: int, start: Any, length: int) -> Any:
    if not _is_along(x, dim) or not isinstance(start, int) or start < 0:
        return NotImplemented
    if length < 0 or start + length > x.shape[x.along]:
        return NotImplemented
    return _range(x, start, start + length)


def _unbind(x: PartsOutput, dim: int = 0) -> Any:
    if not _is_along(x, dim):
        return NotImplemented
    along = x.along
    return tuple(_range(x, i, i + 1).squeeze(along) for i in range(x.shape[along]))


def _getitem(x: PartsOutput, index: Any) -> Any:
    items = list(index) if isinstance(index, tuple) else [index]
    if sum(item is Ellipsis for item in items) > 1:
        return NotImplemented
    if Ellipsis in [item for item in items if item is Ellipsis]:
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = [slice(None)] * (x.ndim - len(items) + 1)
    items += [slice(None)] * (x.ndim - len(items))
    if len(items) != x.ndim:
        return NotImplemented
    mine, total = items[x.along], x.shape[x.along]
    items[x.along] = slice(None)
    if not all(_is_plain(item) for item in items):
        return NotImplemented
    found = _stretch(mine, total)
    if found is None:
        return NotImplemented
    pieces: Any = _range(x, *found)
    several = isinstance(pieces, PartsOutput)
    each = list(pieces.parts) if several else [pieces]
    if any(item != slice(None) for item in items):
        each = [part[tuple(items)] for part in each]
    along = x.along - sum(isinstance(item, int) for item in items[: x.along])
    taken = joined(each, along)
    return taken.squeeze(along) if isinstance(mine, int) else taken


def _is_plain(item: Any) -> bool:
    return isinstance(item, slice) or (
        isinstance(item, int) and not isinstance(item, bool)
    )


def _stretch(index: Any, total: int) -> tuple[int, int] | None:
    """Where an index begins and ends, if it takes everything between."""
    item: Any = index[0] if isinstance(index, list) and len(index) == 1 else index
    if isinstance(item, slice):
        if not all(isinstance(n, int | None) for n in (item.start, item.stop)):
            return None
        start, stop, step = item.indices(total)
        return (start, max(start, stop)) if step == 1 else None
    if not _is_plain(item) or not -total <= item < total:
        return None
    return item % total, item % total + 1


def _view(x: PartsOutput, *shape: Any, **more: Any) -> Any:
    if more or not shape:
        return NotImplemented
    wanted = list(shape[0]) if isinstance(shape[0], list | tuple) else list(shape)
    if not all(isinstance(n, int) for n in wanted):
        return NotImplemented  # a dtype, say
    if wanted.count(-1) == 1:
        known = -math.prod(wanted)
        wanted[wanted.index(-1)] = x.numel() // known if known else 0
    if math.prod(wanted) != x.numel() or min(wanted, default=0) < 1:
        return NotImplemented
    before = math.prod(x.shape[: x.along])
    after = math.prod(x.shape[x.along + 1 :])
    for along in range(len(wanted)):
        # [2, 5, 96 + 32 + 32] as [2, 5, 20, 8]: the parts are 12, 4 and 4 of the 20.
        rest = math.prod(wanted[along + 1 :])
        sizes = [part.shape[x.along] * after for part in x.parts]
        fits = math.prod(wanted[:along]) == before
        if fits and not any(size % rest for size in sizes):
            shapes = [
                (*wanted[:along], size // rest, *wanted[along + 1 :]) for size in sizes
            ]
            pairs = zip(x.parts, shapes, strict=True)
            return joined([part.reshape(s) for part, s in pairs], along)
    return NotImplemented


def _unflatten(x: PartsOutput, dim: int, sizes: Any) -> Any:
    if not -x.ndim <= dim < x.ndim or not isinstance(sizes, list | tuple):
        return NotImplemented
    dim %= x.ndim
    return _view(x, [*x.shape[:dim], *sizes, *x.shape[dim + 1 :]])


def _transpose(x: PartsOutput, dim0: int, dim1: int) -> Any:
    order = list(range(x.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permute(x, order)


def _permute(x: PartsOutput, *dims: Any) -> Any:
    given: Any = dims[0] if isinstance(dims[0], list | tuple) else dims
    order = [d % x.ndim for d in given]
    if sorted(order) != list(range(x.ndim)):
        return NotImplemented
    return joined([part.permute(order) for part in x.parts], order.index(x.along))


def _each(name: str) -> Callable[..., Any]:
    """For what treats each number by itself, and gives as many."""

    def apply(x: PartsOutput, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values())):
            return NotImplemented
        made = [getattr(part, name)(*args, **kwargs) for part in x.parts]
        return joined(made, x.along)

    return apply


def _take_apart() -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "split", _split
    yield "split_with_sizes", _split
    yield "chunk", _chunk
    yield "narrow", _narrow
    yield "unbind", _unbind
    yield "__getitem__", _getitem
    yield "view", _view
    yield "reshape", _view
    yield "unflatten", _unflatten
    yield "transpose", _transpose
    yield "permute", _permute
    for name in ("to", "float", "bfloat16", "half", "contiguous", "clamp"):
        yield name, _each(name)


_TAKE_APART = dict(_take_apart())
