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

from fsdpv2._broadcast import Copies, Product, Sum, is_broadcast
from fsdpv2._made import Made, Makings
from fsdpv2._unreduced import Keeper
from fsdpv2._unreduced_conv import Convolution
from fsdpv2._unreduced_rows import (
    How,
    Lookup,
    LookupRows,
    Norm,
    NormRows,
    known_as,
)
from spmd import Annotation
from spmd._capture.prime import original_of
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
        self._makings = Makings(masters)
        self._dtype = dtype
        self._into = into

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, kind = kwargs or {}, original_of(func)
        if self._into is not None:
            value = self._makings.call(kind, func, args, kwargs)
            if value is not None:
                return value
        if kind is F.linear:
            return self._linear(*args, **kwargs)
        if kind is F.embedding:
            return self._embedding(*args, **kwargs)
        if kind in _MATMULS and len(args) == 2 and not kwargs:
            return self._matmul(func, *args)
        if kind is torch.addmm and len(args) == 3 and not kwargs:
            return self._addmm(*args)
        if self._into is not None:
            if kind is F.layer_norm:
                return self._layer_norm(*args, **kwargs)
            if kind is F.rms_norm:
                return self._rms_norm(*args, **kwargs)
            if kind in _BROADCASTS and len(args) == 2 and not kwargs:
                return self._broadcast(kind, func, *args)
            if kind is torch.Tensor.expand:
                return self._expand(*args, **kwargs)
            if kind in _CONVOLUTIONS:
                return self._convolve(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: Any = None
    ) -> Any:
        made = self._makings.of(weight)
        if made is None or not _fits(input, weight):
            return F.linear(input, weight, bias)
        out = self._times(input, weight, made, 1)
        return out if bias is None else self._plus(out, bias)

    def _times(self, x: torch.Tensor, weight: Any, made: Made, over: int) -> Any:
        how = How(self._dtype or x.dtype, self._into)
        return _Linear.apply(x, weight.detach(), made, how, over, *made.masters)

    def _plus(self, x: Any, bias: torch.Tensor) -> Any:
        made = self._makings.of(bias)
        if made is None or not is_broadcast(bias, x):
            return x + bias
        how = How(self._dtype or x.dtype, self._into)
        return Sum.apply(x, bias.detach(), made, how, *made.masters)

    def _matmul(self, func: Any, x: Any, weight: Any) -> Any:
        """A product with a weight [in, out], as GPT-2 has them."""
        made = self._makings.of(weight)
        if made is None or weight.ndim != 2 or not _fits(x, weight):
            return func(x, weight)
        return self._times(x, weight, made, 0)

    def _addmm(self, bias: Any, x: Any, weight: Any) -> Any:
        if self._makings.of(weight) is None or not _fits(x, weight):
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
        master = self._makings.weight(weight)
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
        rows: Any = LookupRows.apply(lookup, table, master, how)
        if keeps and self._into is not None and not self._into.is_batch(input):
            self._makings.note_rows(rows, master, input, padding)
        return rows

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
        masters = [self._makings.weight(w) for w in weights]
        pairs = [(w, m) for w, m in zip(weights, masters, strict=True) if w is not None]
        if not pairs or not all(m is not None and _fits(input, w) for w, m in pairs):
            return norm.call(input, *weights)
        values = [None if w is None else w.detach() for w in weights]
        how = How(self._dtype or input.dtype, self._into)
        return NormRows.apply(norm, input, values, how, *masters)

    def _broadcast(self, kind: Any, func: Any, a: Any, b: Any) -> Any:
        """A sum or product with a weight, such as norms of models' own end with."""
        for weight, x in ((a, b), (b, a)):
            made = self._makings.of(weight)
            if made is None or not isinstance(x, torch.Tensor):
                continue
            if _fits(x, weight) and is_broadcast(weight, x):
                how = How(self._dtype or x.dtype, self._into)
                value = Product if kind in _PRODUCTS else Sum
                return value.apply(x, weight.detach(), made, how, *made.masters)
        return func(a, b)

    def _convolve(
        self, func: Any, x: Any, weight: Any, bias: Any = None, *rest: Any, **more: Any
    ) -> Any:
        made = self._makings.of(weight)
        if made is None or x.ndim != weight.ndim or not _fits(x, weight):
            return func(x, weight, bias, *rest, **more)

        def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return func(x, weight, None, *rest, **more)

        how = How(self._dtype or x.dtype, self._into)
        out = Convolution.apply(call, x, weight.detach(), made, how, *made.masters)
        if bias is None:
            return out
        view, shape = torch.Tensor.view, (-1, *[1] * (x.ndim - 2))
        shown = self._makings.call(view, view, (bias, shape), {})
        return self._plus(out, bias.view(shape) if shown is None else shown)

    def _expand(self, weight: torch.Tensor, *sizes: Any, **kwargs: Any) -> Any:
        """A weight for each row, as tokens of classes are."""
        made, value = self._makings.of(weight), weight.expand(*sizes, **kwargs)
        if made is None or self._into is None or not self._into.is_batch(value):
            return value
        how = How(self._dtype or weight.dtype, self._into)
        return Copies.apply(weight.detach(), value.shape, made, how, *made.masters)


_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_MATMULS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
_PRODUCTS = (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__)
_SUMS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
_BROADCASTS = (*_PRODUCTS, *_SUMS)


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
        made: Made,
        how: How,
        over: int,
        *masters: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.made, ctx.how, ctx.over = made, how, over
        return dot(x, weight, Dims((x.ndim - 1,), (over,)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        made, how = ctx.made, ctx.how
        of_x = None
        of_weights = (None,) * len(made.masters)
        if ctx.needs_input_grad[0]:
            of_x = dot(grad, weight, Dims((x.ndim - 1,), (1 - ctx.over,)))
        if any(ctx.needs_input_grad[5:]):
            pair = (grad, x) if ctx.over else (x, grad)
            with _named(grad, made.known):
                if not how.keep(made, pair, _by_device):
                    whole = _over_rows(*pair, made.known, how.dtype)
                    of_weights = tuple(made.gradients(whole))
        return of_x, None, None, None, None, *of_weights


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
