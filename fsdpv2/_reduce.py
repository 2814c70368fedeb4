"""Reduce gradients in another dtype than the one a layer computes in.

The compiler reduces a gradient right where a product leaves it in parts, in the dtype
of that product. So the product must come out in the wanted dtype already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from spmd import Annotation, _torch_xla
from spmd._host_sums import added_up, parted
from spmd._mark import get_sharding, remember
from spmd._planning import GRADIENT, noted
from spmd._preserve_dot import Dims, dot


@contextmanager
def reducing(
    masters: Mapping[torch.Tensor, torch.Tensor], *, dtype: torch.dtype
) -> Iterator[None]:
    """Compute weight gradients of linear layers and embeddings in a dtype.

    Args:
        masters: The tensor that gets the gradient, by the one that is computed with.
        dtype: The dtype.

    Yields:
        Nothing.
    """
    with _Reducing(masters, dtype):
        yield


class _Reducing(TorchFunctionMode):
    def __init__(
        self, masters: Mapping[torch.Tensor, torch.Tensor], dtype: torch.dtype
    ) -> None:
        super().__init__()
        self._masters = {id(used): master for used, master in masters.items()}
        self._dtype = dtype

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
        return func(*args, **kwargs)

    def _linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: Any = None
    ) -> Any:
        master = self._masters.get(id(weight))
        if master is None or not _fits(input, weight):
            return F.linear(input, weight, bias)
        out = _Linear.apply(input, weight.detach(), master, self._dtype)
        if bias is None:
            return out
        known = self._masters.get(id(bias))
        if known is None:
            return out + bias
        return _Bias.apply(out, bias.detach(), known, self._dtype)

    def _embedding(
        self, input: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        master = self._masters.get(id(weight))
        if master is None:
            return F.embedding(input, weight, *args, **kwargs)

        def look_up(table: torch.Tensor) -> torch.Tensor:
            return F.embedding(input, table, *args, **kwargs)

        table = _as(weight, weight.detach())
        return _LookUp.apply(look_up, table, master, self._dtype)


def _as(known: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Let a table's values know how it is split: a lookup asks for that."""
    annotation = get_sharding(known)
    if annotation is not None:
        remember(tensor, annotation.mesh, annotation.spec)
    return tensor


def _fits(input: torch.Tensor, weight: torch.Tensor) -> bool:
    same = input.dtype == weight.dtype and input.device.type == "xla"
    return same and input.ndim > 1


class _Linear(torch.autograd.Function):
    """[..., in] times [out, in], the weight's gradient in a dtype of its own."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        master: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dtype = dtype
        ctx.known = get_sharding(master)
        return dot(x, weight, Dims((x.ndim - 1,), (1,)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = dot(grad, weight, Dims((x.ndim - 1,), (0,)))
        if ctx.needs_input_grad[2]:
            with _named(grad, ctx.known):
                of_weight = _over_rows(grad, x, ctx.known, ctx.dtype)
        return of_x, None, of_weight, None


def _over_rows(
    grad: torch.Tensor, x: torch.Tensor, known: Annotation | None, dtype: torch.dtype
) -> torch.Tensor:
    """[..., out] times [..., in] over the leading dims: [out, in]."""
    rows = list(range(x.ndim - 1))
    parts = parted(known, grad, x)
    if parts is None:
        return _torch_xla.dot_general(grad, x, rows, rows, [], [], dtype=dtype)
    rows = [d + 1 for d in rows]
    return added_up(_torch_xla.dot_general(*parts, rows, rows, [0], [0], dtype=dtype))


def _named(grad: torch.Tensor, known: Annotation | None) -> Any:
    """No dispatch mode sees this product, so a trace must be told where it belongs."""
    if known is None:
        return nullcontext()
    return noted(GRADIENT, grad, known.mesh, known.spec)


class _Bias(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        bias: torch.Tensor,
        master: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        ctx.dtype = dtype
        return x + bias

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        rows = list(range(grad.ndim - 1))
        return grad, None, grad.sum(rows, dtype=ctx.dtype), None


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, look_up: Any, weight: torch.Tensor, master: Any, dtype: torch.dtype
    ) -> torch.Tensor:
        ctx.look_up = look_up
        ctx.dtype = dtype
        ctx.like = weight
        return look_up(weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        table = _as(ctx.like, ctx.like.detach().to(ctx.dtype)).requires_grad_()
        with torch.enable_grad():  # its value is not used, only what undoes it
            rows = ctx.look_up(table)
        (of_table,) = torch.autograd.grad(rows, table, grads[0].to(ctx.dtype))
        return None, None, of_table, None
