"""Reduce gradients in another dtype than the one a layer computes in.

The compiler reduces a gradient right where a product leaves it in parts, in the dtype
of that product. So the product must come out in the wanted dtype already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from fsdpv2._unreduced import Keeper
from spmd import Annotation, _torch_xla
from spmd._host_sums import added_up, parted
from spmd._mark import get_sharding, remember
from spmd._planning import GRADIENT, noted
from spmd._preserve_dot import Dims, dot


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
        into: Where gradients of linear layers are added up before they are reduced.

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
        if func is F.embedding and self._dtype is not None:
            return self._embedding(*args, **kwargs)
        return func(*args, **kwargs)

    def _linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: Any = None
    ) -> Any:
        master = self._masters.get(id(weight))
        if master is None or not _fits(input, weight):
            return F.linear(input, weight, bias)
        how = _How(self._dtype or input.dtype, self._into)
        out = _Linear.apply(input, weight.detach(), master, how)
        if bias is None:
            return out
        known = self._masters.get(id(bias))
        if known is None:
            return out + bias
        return _Bias.apply(out, bias.detach(), known, how)

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
    if torch.is_autocast_enabled("xla"):  # torch is to choose the dtype
        return False
    same = input.dtype == weight.dtype and input.device.type == "xla"
    return same and input.ndim > 1


@dataclass(frozen=True, slots=True)
class _How:
    """How a weight's gradient is made.

    Attributes:
        dtype: What it is reduced in.
        into: Where it is added up before, or None.
    """

    dtype: torch.dtype
    into: Keeper | None

    def keep(
        self,
        weight: torch.Tensor,
        values: Sequence[torch.Tensor],
        make: Callable[..., torch.Tensor],
    ) -> bool:
        """Add up a gradient in parts, if that may be.

        Args:
            weight: The weight that has it.
            values: What it is made of, [rows, ...].
            make: Makes parts of it in a dtype, [devices, *shape], from values as
                [devices, rows / devices, ...].

        Returns:
            Whether it is added up; else it is to be made and reduced.
        """
        if self.into is None or not self.into.takes(weight, *values):
            return False
        kept = torch.promote_types(self.dtype, weight.dtype)
        parts = make(*map(self.into.split, values), dtype=kept)
        self.into.add(weight, parts, wire=self.dtype)
        return True


class _Linear(torch.autograd.Function):
    """[..., in] times [out, in], the weight's gradient in a dtype of its own."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        master: torch.Tensor,
        how: _How,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.master, ctx.how = master, how
        return dot(x, weight, Dims((x.ndim - 1,), (1,)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        how, known = ctx.how, get_sharding(ctx.master)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = dot(grad, weight, Dims((x.ndim - 1,), (0,)))
        if ctx.needs_input_grad[2]:
            with _named(grad, known):
                if not how.keep(ctx.master, (grad, x), _by_device):
                    of_weight = _over_rows(grad, x, known, how.dtype)
        return of_x, None, of_weight, None


def _by_device(
    grad: torch.Tensor, x: torch.Tensor, *, dtype: torch.dtype
) -> torch.Tensor:
    """[devices, ..., out] times [devices, ..., in]: [devices, out, in]."""
    rows = list(range(1, x.ndim - 1))
    return _torch_xla.dot_general(grad, x, rows, rows, [0], [0], dtype=dtype)


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
        ctx: Any, x: torch.Tensor, bias: torch.Tensor, master: torch.Tensor, how: _How
    ) -> torch.Tensor:
        ctx.master, ctx.how = master, how
        return x + bias

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        of_bias = None
        if ctx.needs_input_grad[2] and not ctx.how.keep(ctx.master, (grad,), _sum):
            of_bias = grad.sum(list(range(grad.ndim - 1)), dtype=ctx.how.dtype)
        return grad, None, of_bias, None


def _sum(grad: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """[devices, ..., out] as [devices, out]."""
    return grad.sum(list(range(1, grad.ndim - 1)), dtype=dtype)


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
