"""`scan_layers`: equal layers as one loop, so that compile time is flat in depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import stateless

from fsdpv2._keeper import Keeper, active, unreduced
from fsdpv2._scan_random import CountedDraws, check_same, draw_keys
from fsdpv2._unreduced import Unreduced
from fsdpv2._unreduced_loop import InLoop
from spmd._marking.mark import Annotation, get_sharding, remember
from spmd._names.rebuild import leaves, rebuild
from spmd._remat.surrounding import dropped
from spmd._stacked.layers import Stacked
from spmd._stacked.stack import stack_layers
from spmd._torch_xla import seam
from spmd._torch_xla.scan import Late, loop

Tensors = list[torch.Tensor]


def scan_lists(module: nn.Module, layers: Sequence[type[nn.Module]]) -> list[Scanned]:
    """Have the lists of equal layers of a model run as loops.

    Args:
        module: The model; its lists of layers get a class of their own.
        layers: Classes of the layers, wrappers aside.

    Returns:
        The lists, for `scanning`.

    Raises:
        ValueError: No list of such layers, or layers that differ.
    """
    found: list[Any] = []
    for name, child in list(module.named_modules()):
        if not isinstance(child, nn.ModuleList | nn.Sequential) or len(child) < 2:
            continue
        inner = [c.__dict__.get("_wrapped", c) for c in child]
        if all(type(c) in layers for c in inner):
            _check_equal(name, list(child))
            others = _names_outside(module, name)
            stack_layers(child, name=name, others=others, kind=Scanned)
            found.append(child)
    if not found:
        kind = type(module.__dict__.get("_wrapped", module)).__name__
        raise ValueError(
            f"FSDPv2: scan_layers=True, but {kind} has no list of two or more equal "
            f"layers; leave scan_layers out"
        )
    return found


@contextmanager
def scanning(lists: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, a loop over such a list runs once, and all layers in it.

    Args:
        lists: From `scan_lists`.

    Yields:
        Nothing.
    """
    with ExitStack() as stack:
        for one in lists:
            one.__dict__["_is_scanning"] = True
            stack.callback(one.__dict__.update, _is_scanning=False)
        yield


class Scanned(Stacked):
    """A list of layers that gives one callable for all of them while it is scanned."""

    def __iter__(self) -> Iterator[Any]:
        """Give the layers, or what runs them all."""
        if not self.__dict__.get("_is_scanning"):
            return super().__iter__()
        return iter([_AllLayers(self.template)])

    def __getitem__(self, index: Any) -> Any:
        """A slice of all of them is the list."""
        if isinstance(index, slice) and self.__dict__.get("_is_scanning"):
            whole = range(len(self))
            if whole[index] != whole:
                raise ValueError(
                    f"FSDPv2: scan_layers=True runs all {len(whole)} layers in one "
                    f"loop, but the model asks for {index}; leave scan_layers out"
                )
            return self
        return super().__getitem__(index)


class _AllLayers:
    """Equal layers, called as one of them: the one that holds the tensors of all."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        layer = self._layer
        kind = _kind(layer)
        table = _tensors(layer)
        names, stacked = list(table), list(table.values())
        known = [_of_one(get_sharding(t)) for t in stacked]
        given = (args, kwargs)
        others = [leaf for _, leaf in leaves(given) if torch.is_tensor(leaf)]
        split = get_sharding(x)

        def run(x: torch.Tensor, others: Tensors, weights: Tensors) -> torch.Tensor:
            twins = iter(others)
            args, kwargs = rebuild(
                given, lambda leaf: next(twins) if torch.is_tensor(leaf) else leaf
            )
            used = map(_split, weights, known)
            table = dict(zip(names, used, strict=True))
            instead = stateless._reparametrize_module(layer, table, tie_weights=True)
            with instead, dropped():
                out = layer(_split(x, split), *args, **kwargs)
            return _checked(out, x, kind)

        keep = _Keep(active(), stacked)
        return _Scan.apply(run, kind, keep, x, len(others), *others, *stacked)  # pyright: ignore[reportReturnType] - untyped in torch


class _Scan(torch.autograd.Function):
    """Keeps what enters each layer, and computes the rest again."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Any,
        kind: str,
        keep: _Keep,
        x: torch.Tensor,
        num_others: int,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        others, stacked = list(tensors[:num_others]), list(tensors[num_others:])
        keys = Late()  # none where nothing is drawn
        draws = CountedDraws(
            lambda: keys.add(lambda: draw_keys(len(stacked[0]))), kind=kind
        )

        def body(carry: Tensors, xs: Tensors) -> tuple[Tensors, Tensors]:
            x, *others = carry
            with draws:
                out = run(x, others, xs)
            return [out, *others], [x * 1]

        (out, *_), (entered,) = loop(body, [x, *others], stacked, late=keys)
        ctx.run, ctx.kind, ctx.draws, ctx.keys = run, kind, draws, keys.values
        ctx.keep = keep
        ctx.num_others, ctx.split = num_others, get_sharding(x)
        ctx.save_for_backward(entered, *tensors)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        entered, *tensors = ctx.saved_tensors
        others, stacked = tensors[: ctx.num_others], tensors[ctx.num_others :]
        wanted = ctx.needs_input_grad[5:]
        of_others = [o for o, w in zip(others, wanted, strict=False) if w]
        learned = [i for i, w in enumerate(wanted[ctx.num_others :]) if w]
        run, count = ctx.run, len(of_others)
        marks = [get_sharding(t) for t in stacked]
        in_loop = ctx.keep.of(learned)
        plain: list[int] = []  # those whose gradient is no part, once it is known

        def body(carry: Tensors, xs: Tensors) -> tuple[Tensors, Tensors]:
            grad, *rest = carry
            sums, others = rest[:count], rest[count:]
            x = _split(xs[0], ctx.split).detach().requires_grad_()
            weights = [w.detach() for w in xs[1 : 1 + len(stacked)]]
            given = [o.detach() for o in others]
            for i in learned:
                weights[i].requires_grad_()
            chosen = [o for o, w in zip(given, wanted, strict=False) if w]
            for one in chosen:
                one.requires_grad_()
            again = CountedDraws(lambda: xs[-1], kind=ctx.kind)
            with torch.enable_grad(), again, _kept_by(in_loop, weights):
                out = run(x, given, weights)
            check_same(ctx.draws, again, kind=ctx.kind)
            asked = [x, *chosen, *(weights[i] for i in learned)]
            found = torch.autograd.grad(
                out, asked, _split(grad, ctx.split), allow_unused=True
            )
            parts = {} if in_loop is None else in_loop.parts
            of_weights = dict(zip(learned, found[1 + count :], strict=True))
            plain[:] = [
                i for i, g in of_weights.items() if g is not None or i not in parts
            ]
            of_x, *of_chosen = map(_whole, found[: 1 + count], asked)
            added = [s + g for s, g in zip(sums, of_chosen, strict=True)]
            kept = [_whole(of_weights[i], weights[i]) for i in plain]
            return [of_x, *added, *others], [*kept, *parts.values()]

        zeros = [torch.zeros_like(o) for o in of_others]
        (of_x, *rest), kept = loop(
            body,
            [grads[0], *zeros, *others],
            [entered, *stacked, *ctx.keys],
            reverse=True,
        )
        sums, by_weight = iter(rest[:count]), dict(zip(plain, kept, strict=False))
        if in_loop is not None:
            in_loop.hand_out(dict(zip(in_loop.parts, kept[len(plain) :], strict=True)))
        for i, value in by_weight.items():
            _split(value, marks[i])
        first = [next(sums) if w else None for w in wanted[: ctx.num_others]]
        return (
            None,
            None,
            None,
            of_x,
            None,
            *first,
            *map(by_weight.get, range(len(stacked))),
        )


@dataclass(frozen=True, slots=True)
class _Keep:
    """Where gradients are added up before they are reduced.

    Attributes:
        into: Where, or None.
        owners: The stacked weights.
    """

    into: Keeper | None
    owners: Tensors

    def of(self, learned: Sequence[int]) -> InLoop | None:
        """For a backward pass, which may ask for the gradients of some of them."""
        into = self.into
        if not isinstance(into, Unreduced):
            return None
        owners = {i: self.owners[i] for i in learned}
        taken = {i: o for i, o in owners.items() if into.takes(o, axes=into.axes_of(o))}
        return InLoop(into, taken)


def _kept_by(
    in_loop: InLoop | None, weights: Sequence[torch.Tensor]
) -> AbstractContextManager[None]:
    if in_loop is not None:
        in_loop.enter(weights)
    return unreduced(in_loop)


def _whole(grad: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if grad is None else grad


def _of_one(known: Annotation | None) -> Annotation | None:
    """How one layer's part of a stacked tensor is split."""
    return None if known is None else Annotation(known.mesh, known.spec[1:])


def _split(value: torch.Tensor, known: Annotation | None) -> torch.Tensor:
    """The compiler does not look into a loop for how its values are split."""
    if known is None or value.device.type != "xla":
        return value
    seam.mark(value, known.mesh, known.spec)
    return remember(value, known.mesh, known.spec)


def _tensors(layer: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(layer.named_parameters()), **dict(layer.named_buffers())}


def _names_outside(module: nn.Module, name: str) -> dict[int, str]:
    named = module.named_parameters(remove_duplicate=False)
    return {id(p): n for n, p in named if not n.startswith(f"{name}.")}


def _check_equal(name: str, layers: list[nn.Module]) -> None:
    def key(layer: nn.Module) -> list[Any]:
        named = _tensors(layer).items()
        return [(n, tuple(t.shape), t.dtype, t.requires_grad) for n, t in named]

    def specs(layer: nn.Module) -> list[Any]:
        return [(n, get_sharding(t)) for n, t in _tensors(layer).items()]

    for i, layer in enumerate(layers):
        if key(layer) != key(layers[0]):
            raise ValueError(
                f"FSDPv2: scan_layers=True needs equal layers, but {name}.{i} has "
                f"other parameters than {name}.0; leave scan_layers out"
            )
        for (n, mine), (_, first) in zip(specs(layer), specs(layers[0]), strict=True):
            if mine != first:
                raise ValueError(
                    f"FSDPv2: scan_layers=True needs equal layers, but {name}.{i}.{n} "
                    f"is split by {mine and mine.spec}, that of {name}.0 by "
                    f"{first and first.spec}; annotate them alike, or leave "
                    f"scan_layers out"
                )


def _kind(layer: nn.Module) -> str:
    return type(layer.__dict__.get("_wrapped", layer)).__name__


def _checked(out: Any, x: torch.Tensor, kind: str) -> torch.Tensor:
    if torch.is_tensor(out) and (out.shape, out.dtype) == (x.shape, x.dtype):
        return out
    what = f"{list(out.shape)} {out.dtype}" if torch.is_tensor(out) else type(out)
    raise ValueError(
        f"FSDPv2: scan_layers=True needs layers that return what the next one takes, "
        f"{list(x.shape)} {x.dtype}; {kind} returns {what}. Leave scan_layers out"
    )
