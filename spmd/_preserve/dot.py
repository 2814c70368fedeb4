"""Products that keep every dim of their operands, forward and backward.

torch_xla computes `torch.nn.functional.linear` and batched products as products of
matrices, for which it flattens the leading dims: [batch, seq, embed] becomes
[batch * seq, embed], and what was split on both can no longer be said. XLA's own
product has as many batch, free and contracted dims as it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spmd._marking.mark import Annotation, get_sharding
from spmd._ops.host_sums import added_up, parted
from spmd._torch_xla import seam


@dataclass(frozen=True, slots=True)
class Dims:
    """Which dims of two operands are paired; each pair is of one size.

    Attributes:
        contract_a: Dims of the first operand that are summed over.
        contract_b: Their partners in the second.
        batch_a: Dims of the first operand that stay, paired.
        batch_b: Their partners in the second.
    """

    contract_a: tuple[int, ...]
    contract_b: tuple[int, ...]
    batch_a: tuple[int, ...] = ()
    batch_b: tuple[int, ...] = ()

    def free_a(self, ndim: int) -> tuple[int, ...]:
        """Dims of the first operand, which has `ndim`, that have no partner."""
        return _others(ndim, (*self.contract_a, *self.batch_a))

    def free_b(self, ndim: int) -> tuple[int, ...]:
        """Dims of the second operand, which has `ndim`, that have no partner."""
        return _others(ndim, (*self.contract_b, *self.batch_b))


def dot(a: torch.Tensor, b: torch.Tensor, dims: Dims) -> torch.Tensor:
    """A product whose dims are the batch dims, the free ones of `a`, those of `b`.

    Each gradient is one product again, so that it is reduced once, whatever the number
    of leading dims that are split.

    Args:
        a: A tensor on the XLA device.
        b: Another of the same dtype.
        dims: Which dims are paired.

    Returns:
        The product, of the same dtype.
    """
    return _Dot.apply(a, b, dims)  # pyright: ignore[reportReturnType] - untyped in torch


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor, dims: Dims) -> torch.Tensor:
        return torch.ops.spmd.dot_general(
            a, b, dims.contract_a, dims.contract_b, dims.batch_a, dims.batch_b
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, ctx.dims = inputs
        ctx.known = get_sharding(b)
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        (grad,) = grads
        dims: Dims = ctx.dims
        of_a = of_b = None
        if ctx.needs_input_grad[0]:
            of_a = gradient_of_a(grad, a, b, dims)
        if ctx.needs_input_grad[1]:
            of_b = gradient_of_b(grad, a, dims, ndim=b.ndim, known=ctx.known)
        return of_a, of_b, None


def gradient_of_a(
    grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dims: Dims
) -> torch.Tensor:
    """Sum over the free dims of `b`.

    `x [b, s, e]` times `w [o, e]`: `[b, s, o]` times `w` over `o` is `[b, s, e]`.

    Args:
        grad: Of the product.
        a: Its first operand.
        b: Its second operand.
        dims: Which of their dims are paired.

    Returns:
        The shape of `a`.
    """
    batch = range(len(dims.batch_a))
    free_b = dims.free_b(b.ndim)
    last = range(grad.ndim - len(free_b), grad.ndim)
    product = dot(grad, b, Dims(tuple(last), free_b, tuple(batch), dims.batch_b))
    contracted = _in_order(dims.contract_b, dims.contract_a)
    given = (*dims.batch_a, *dims.free_a(a.ndim), *contracted)
    return _sorted(product, given)


def gradient_of_b(
    grad: torch.Tensor,
    a: torch.Tensor,
    dims: Dims,
    *,
    ndim: int,
    known: Annotation | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Sum over the free dims of `a`.

    In one product for each host where that keeps axes inside it.

    Args:
        grad: Of the product.
        a: Its first operand.
        dims: Which dims of the operands are paired.
        ndim: Dims of the second operand.
        known: How the second operand is split.
        dtype: Of the gradient, where it is another than theirs; it has no gradient of
            its own then.

    Returns:
        The shape of the second operand.
    """
    sums_rows = not dims.batch_a and 0 not in dims.contract_a
    parts = parted(known, grad, a) if sums_rows else None
    if parts is None:
        return _gradient_of_b(grad, a, dims, ndim, dtype)
    contract_a = tuple(d + 1 for d in dims.contract_a)
    contract_b = tuple(d + 1 for d in dims.contract_b)
    by_host = Dims(contract_a, contract_b, (0,), (0,))
    return added_up(_gradient_of_b(*parts, by_host, ndim + 1, dtype))


def _gradient_of_b(
    grad: torch.Tensor,
    a: torch.Tensor,
    dims: Dims,
    ndim: int,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """In the order that needs no transposition.

    `x [b, s, e]` times `w [o, e]`: `[b, s, o]` times `x` over `b, s` is `[o, e]`.
    """
    batch = tuple(range(len(dims.batch_a)))
    free_a, free_b = dims.free_a(a.ndim), dims.free_b(ndim)
    middle = tuple(range(len(batch), len(batch) + len(free_a)))
    contracted = _in_order(dims.contract_a, dims.contract_b)
    given = (*dims.batch_b, *free_b, *contracted)
    if given == tuple(range(ndim)):
        return _in_dtype(grad, a, Dims(middle, free_a, batch, dims.batch_a), dtype)
    product = _in_dtype(a, grad, Dims(free_a, middle, dims.batch_a, batch), dtype)
    return _sorted(product, (*dims.batch_b, *contracted, *free_b))


def _in_dtype(
    a: torch.Tensor, b: torch.Tensor, dims: Dims, dtype: torch.dtype | None
) -> torch.Tensor:
    if dtype in (None, a.dtype):
        return dot(a, b, dims)
    pairs = dims.contract_a, dims.contract_b, dims.batch_a, dims.batch_b
    return seam.dot_general(a, b, *map(list, pairs), dtype=dtype)


def _others(ndim: int, dims: Iterable[int]) -> tuple[int, ...]:
    taken = set(dims)
    return tuple(d for d in range(ndim) if d not in taken)


def _in_order(keys: Sequence[int], values: Sequence[int]) -> tuple[int, ...]:
    """`values` in the order in which a product leaves them: that of their partners."""
    return tuple(v for _, v in sorted(zip(keys, values, strict=True)))


def _sorted(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Give a tensor whose dims are the numbered ones in this order, in their own."""
    order = [dims.index(d) for d in range(tensor.ndim)]
    return tensor if order == list(range(tensor.ndim)) else tensor.permute(order)


def _shape(
    a: torch.Tensor,
    b: torch.Tensor,
    contract_a: list[int],
    contract_b: list[int],
    batch_a: list[int],
    batch_b: list[int],
) -> torch.Tensor:
    """What torch's tracers, which have shapes only, take for the product."""
    shape = [a.shape[d] for d in batch_a]
    shape += [a.shape[d] for d in _others(a.ndim, (*contract_a, *batch_a))]
    shape += [b.shape[d] for d in _others(b.ndim, (*contract_b, *batch_b))]
    return a.new_empty(shape)


_library = torch.library.Library("spmd", "FRAGMENT")
_library.define(
    "dot_general(Tensor a, Tensor b, int[] contract_a, int[] contract_b, "
    "int[] batch_a, int[] batch_b) -> Tensor"
)
_library.impl("dot_general", seam.dot_general, "XLA")
_library.impl("dot_general", _shape, "Meta")
