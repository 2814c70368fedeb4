"""Reduce gradients in another dtype than the one a layer computes in.

The compiler reduces a gradient right where a product leaves it in parts, in the dtype
of that product. So the product must come out in the wanted dtype already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from fsdpv2._unreduced import Keeper
from fsdpv2._unreduced_rows import (
    How,
    Lookup,
    LookupRows,
    Norm,
    NormRows,
    ScaledRows,
    known_as,
    summed,
)
from spmd import Annotation
from spmd._marking.mark import get_sharding
from spmd._marking.planning import GRADIENT, noted
from spmd._ops.host_sums import added_up, parted
from spmd._preserve.dot import Dims, dot
from spmd._torch_xla import seam


@contextmanager
def reducing(
    masters: Mapping[torch.Tensor, torch.Tensor],
    *,
    dtype: torch.dtype | None,
    into: Keeper | None = None,
) -> Iterator[None]:
    """Compute weight gradients of linear layers and embeddings in a dtype.

    Args:
        masters: The tensor that gets the gradient, by the one that is computed with.
        dtype: The dtype; None for the one that is computed in.
        into: Where gradients, those of norms too, are added up before they are reduced.

    Yields:
        Nothing.
    """
    with _Reducing(masters, dtype, into):
        yield


class _Reducing(TorchFunctionMode):
    def __init__(
        self,
        masters: Mapping[torch.Tensor, torch.Tensor],
        dtype: torch.dtype | None,
        into: Keeper | None,
    ) -> None:
        super().__init__()
        self._masters = {id(used): master for used, master in masters.items()}
        self._dtype = dtype
        self._into = into

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func is F.embedding:
            return self._embedding(*args, **kwargs)
        if func in _MATMULS and len(args) == 2 and not kwargs:
            return self._matmul(func, *args)
        if func is torch.addmm and len(args) == 3 and not kwargs:
            return self._addmm(*args)
        if self._into is not None:
            if func is F.layer_norm:
                return self._layer_norm(*args, **kwargs)
            if func is F.rms_norm:
                return self._rms_norm(*args, **kwargs)
            if func in _PRODUCTS and len(args) == 2 and not kwargs:
                return self._product(func, *args)
            if func in _SUMS and len(args) == 2 and not kwargs:
                return self._sum(func, *args)
        return func(*args, **kwargs)

    def _linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: Any = None
    ) -> Any:
        master = self._masters.get(id(weight))
        if master is None or not _fits(input, weight):
            return F.linear(input, weight, bias)
        how = How(self._dtype or input.dtype, self._into)
        out = _Linear.apply(input, weight.detach(), master, how, 1)
        return out if bias is None else self._plus(out, bias)

    def _plus(self, x: Any, bias: torch.Tensor) -> Any:
        known = self._masters.get(id(bias))
        if known is None:
            return x + bias
        how = How(self._dtype or x.dtype, self._into)
        return _Bias.apply(x, bias.detach(), known, how)

    def _matmul(self, func: Any, x: Any, weight: Any) -> Any:
        """A product with a weight [in, out], as GPT-2 has them."""
        master = self._masters.get(id(weight))
        if master is None or weight.ndim != 2 or not _fits(x, weight):
            return func(x, weight)
        how = How(self._dtype or x.dtype, self._into)
        return _Linear.apply(x, weight.detach(), master, how, 0)

    def _addmm(self, bias: Any, x: Any, weight: Any) -> Any:
        if id(weight) not in self._masters or not _fits(x, weight):
            return torch.addmm(bias, x, weight)
        return self._plus(self._matmul(torch.matmul, x, weight), bias)

    def _embedding(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        rest = padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
        master = self._masters.get(id(weight))
        plain = max_norm is None and not scale_grad_by_freq and not sparse
        keeps = self._into is not None and plain and weight.device.type == "xla"
        if master is None or (self._dtype is None and not keeps):
            return F.embedding(input, weight, *rest)

        def look_up(table: torch.Tensor) -> torch.Tensor:
            return F.embedding(input, table, *rest)

        padding = -1 if padding_idx is None else padding_idx % len(weight)
        table = known_as(weight, weight.detach())
        lookup = Lookup(look_up, input, padding, self._dtype, keeps)
        how = How(self._dtype or weight.dtype, self._into)
        return LookupRows.apply(lookup, table, master, how)

    def _layer_norm(
        self,
        input: torch.Tensor,
        normalized_shape: Sequence[int],
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
    ) -> Any:
        def call(x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
            return F.layer_norm(x, normalized_shape, weight, bias, eps)

        norm = Norm(call, len(normalized_shape), widens=True)
        return self._norm(norm, input, (weight, bias))

    def _rms_norm(
        self,
        input: torch.Tensor,
        normalized_shape: Sequence[int],
        weight: Any = None,
        eps: float | None = None,
    ) -> Any:
        def call(x: torch.Tensor, weight: Any, _: Any) -> torch.Tensor:
            return F.rms_norm(x, normalized_shape, weight, eps)

        # Without `eps` it depends on the dtype.
        norm = Norm(call, len(normalized_shape), widens=eps is not None)
        return self._norm(norm, input, (weight, None))

    def _norm(
        self, norm: Norm, input: torch.Tensor, weights: Sequence[torch.Tensor | None]
    ) -> Any:
        given = [w for w in weights if w is not None]
        known = all(id(w) in self._masters and _fits(input, w) for w in given)
        if not given or not known:
            return norm.call(input, *weights)
        masters = [None if w is None else self._masters[id(w)] for w in weights]
        values = [None if w is None else w.detach() for w in weights]
        how = How(self._dtype or input.dtype, self._into)
        return NormRows.apply(norm, input, values, how, *masters)

    def _product(self, func: Any, a: Any, b: Any) -> Any:
        """A product with a weight, which norms of models' own end with."""
        for weight, x in ((a, b), (b, a)):
            master = self._masters.get(id(weight))
            if master is None or not isinstance(x, torch.Tensor):
                continue
            if weight.ndim == 1 and _fits(x, weight) and len(weight) == x.shape[-1]:
                how = How(self._dtype or x.dtype, self._into)
                return ScaledRows.apply(x, weight.detach(), master, how)
        return func(a, b)

    def _sum(self, func: Any, a: Any, b: Any) -> Any:
        """A weight [width] that is added, as GPT-2 adds biases."""
        for weight, x in ((a, b), (b, a)):
            if id(weight) not in self._masters or not isinstance(x, torch.Tensor):
                continue
            if weight.ndim == 1 and _fits(x, weight) and len(weight) == x.shape[-1]:
                return self._plus(x, weight)
        return func(a, b)


_MATMULS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
_PRODUCTS = (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__)
_SUMS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)


def _fits(input: torch.Tensor, weight: torch.Tensor) -> bool:
    if torch.is_autocast_enabled("xla"):  # torch is to choose the dtype
        return False
    same = input.dtype == weight.dtype and input.device.type == "xla"
    return same and input.ndim > 1


class _Linear(torch.autograd.Function):
    """[..., in] times [out, in] or, over its dim 0, [in, out]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        master: torch.Tensor,
        how: How,
        over: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.master, ctx.how, ctx.over = master, how, over
        return dot(x, weight, Dims((x.ndim - 1,), (over,)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        how, known = ctx.how, get_sharding(ctx.master)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = dot(grad, weight, Dims((x.ndim - 1,), (1 - ctx.over,)))
        if ctx.needs_input_grad[2]:
            pair = (grad, x) if ctx.over else (x, grad)
            with _named(grad, known):
                if not how.keep(ctx.master, pair, _by_device):
                    of_weight = _over_rows(*pair, known, how.dtype)
        return of_x, None, of_weight, None, None


def _by_device(a: torch.Tensor, b: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """[devices, ..., out] times [devices, ..., in]: [devices, out, in]."""
    rows = list(range(1, a.ndim - 1))
    return seam.dot_general(a, b, rows, rows, [0], [0], dtype=dtype)


def _over_rows(
    a: torch.Tensor, b: torch.Tensor, known: Annotation | None, dtype: torch.dtype
) -> torch.Tensor:
    """[..., out] times [..., in] over the leading dims: [out, in]."""
    rows = list(range(a.ndim - 1))
    parts = parted(known, a, b)
    if parts is None:
        return seam.dot_general(a, b, rows, rows, [], [], dtype=dtype)
    rows = [d + 1 for d in rows]
    return added_up(seam.dot_general(*parts, rows, rows, [0], [0], dtype=dtype))


def _named(grad: torch.Tensor, known: Annotation | None) -> Any:
    """No dispatch mode sees this product, so a trace must be told where it belongs."""
    if known is None:
        return nullcontext()
    return noted(GRADIENT, grad, known.mesh, known.spec)


class _Bias(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, bias: torch.Tensor, master: torch.Tensor, how: How
    ) -> torch.Tensor:
        ctx.master, ctx.how = master, how
        return x + bias

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        of_bias = None
        if ctx.needs_input_grad[2] and not ctx.how.keep(ctx.master, (grad,), summed):
            of_bias = grad.sum(list(range(grad.ndim - 1)), dtype=ctx.how.dtype)
        return grad, None, of_bias, None
