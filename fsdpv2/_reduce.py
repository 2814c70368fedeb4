"""Reduce gradients in another dtype than the one a layer computes in.

The compiler reduces a gradient right where a product leaves it in parts, in the dtype
of that product. So the product must come out in the wanted dtype already.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch._C._autograd import _top_saved_tensors_default_hooks as _top_hooks
from torch._C._functorch import peek_interpreter_stack
from torch.overrides import TorchFunctionMode

from fsdpv2._broadcast import Sum, is_broadcast
from fsdpv2._how import How
from fsdpv2._keeper import Keeper
from fsdpv2._made import Made, Makings
from fsdpv2._twice import twice
from fsdpv2._unreduced_experts import EXPERTS, Experts
from fsdpv2._unreduced_rows import (
    Lookup,
    LookupRows,
    known_as,
)
from fsdpv2._weights import without
from spmd import Annotation
from spmd._capture.prime import original_of
from spmd._marking.planning import GRADIENT, noted
from spmd._meshes.spec import entry_axes
from spmd._ops.host_sums import added_up, parted
from spmd._preserve.dot import Dims, dot
from spmd._torch_xla import seam


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
    with Reducing(masters, dtype):
        yield


class Reducing(TorchFunctionMode):
    """Makes the gradients of weights that are used while it is entered.

    Args:
        masters: The tensor that gets the gradient, by the one that is computed with.
        dtype: What they are reduced in; None for what is computed in.
        into: Where gradients are added up before they are reduced, or None.

    Attributes:
        into: The same.
        makings: Of which weights tensors are made.
        experts: Knows their weights.
    """

    def __init__(
        self,
        masters: Mapping[torch.Tensor, torch.Tensor],
        dtype: torch.dtype | None,
        into: Keeper | None = None,
    ) -> None:
        super().__init__()
        self.into = into
        masters = {t: m for t, m in masters.items() if not t.is_complex()}
        self._hooks: Any = None
        self.makings = Makings(masters, into)
        self.experts = Experts(masters, dtype, into)
        self._dtype = dtype

    def __enter__(self) -> Any:
        """Enter it."""
        self._hooks = _top_hooks(True)
        return super().__enter__()

    def stands_aside(self) -> bool:
        """Whether torch is to make gradients that this cannot.

        Those of `torch.func` and of forward mode; and where hooks of somebody's own
        pack what is saved, such as inside a checkpoint, which enters another one of
        these for both of its computations.
        """
        if peek_interpreter_stack() is not None:
            return True
        if torch.autograd.forward_ad._current_level >= 0:
            return True
        return _top_hooks(True) != self._hooks

    def how(self, x: torch.Tensor) -> How:
        """How a gradient is made that is computed in the dtype of a tensor."""
        return How(self._dtype or x.dtype, self.into)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call one of torch's functions, or what stands for it here."""
        kwargs, kind = kwargs or {}, original_of(func)
        if self.stands_aside():
            return func(*args, **kwargs)
        if kind is F.linear:
            return self.linear(*args, **kwargs)
        if kind is F.embedding:
            return self.embedding(*args, **kwargs)
        if kind in _MATMULS and len(args) == 2 and not kwargs:
            return self.matmul(func, *args)
        if kind is _ADDMM and len(args) == 3 and not kwargs:
            return self.addmm(*args)
        if kind in EXPERTS:
            return self.experts.call(func, *args, **kwargs)
        return func(*args, **kwargs)

    def linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: Any = None
    ) -> Any:
        """See `F.linear`."""
        made = self.makings.of(weight)
        if made is None or not _pair(input, weight, 1):
            return F.linear(input, weight, bias)
        out = self._times(input, weight, made, 1)
        return out if bias is None else self.plus(out, bias)

    def _times(self, x: torch.Tensor, weight: Any, made: Made, over: int) -> Any:
        how = self.how(x)
        return _Linear.apply(x, weight.detach(), made, how, over, *made.masters)

    def plus(self, x: Any, bias: torch.Tensor) -> Any:
        """Rows plus a bias, which may be a weight."""
        made = self.makings.of(bias)
        if made is None or not is_broadcast(bias, x):
            return x + bias
        return Sum.apply(x, bias.detach(), made, self.how(x), *made.masters)

    def matmul(self, func: Any, x: Any, weight: Any) -> Any:
        """A product with a weight [in, out], as GPT-2 has them."""
        made = self.makings.of(weight)
        if made is None or not _pair(x, weight, 0):
            return func(x, weight)
        return self._times(x, weight, made, 0)

    def addmm(self, bias: Any, x: Any, weight: Any) -> Any:
        """See `torch.addmm`."""
        if self.makings.of(weight) is None or x.ndim != 2 or not _pair(x, weight, 0):
            return torch.addmm(bias, x, weight)
        return self.plus(self.matmul(torch.matmul, x, weight), bias)

    def embedding(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        """See `F.embedding`."""
        rest = padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
        master = self.makings.weight(weight)
        plain = max_norm is None and not scale_grad_by_freq and not sparse
        keeps = self.into is not None and plain and weight.device.type == "xla"
        if master is None or (self._dtype is None and not keeps):
            return F.embedding(input, weight, *rest)

        def look_up(table: torch.Tensor) -> torch.Tensor:
            return F.embedding(input, table, *rest)

        padding = -1 if padding_idx is None else padding_idx % len(weight)
        table = known_as(weight, weight.detach())
        lookup = Lookup(look_up, input, padding, self._dtype, keeps)
        how = self.how(weight)
        rows: Any = LookupRows.apply(lookup, table, master, how)
        if keeps and self.into is not None and not self.into.is_batch(rows):
            self.makings.note_rows(rows, master, input, padding)
        return rows


_ADDMM = original_of(torch.addmm)
_MATMULS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


def fits(input: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether torch would compute with two tensors in the dtype of both, on devices.

    Args:
        input: [rows, ...].
        weight: Any.
    """
    if torch.is_autocast_enabled("xla"):  # torch is to choose the dtype
        return False
    same = input.dtype == weight.dtype and input.device.type == "xla"
    return same and input.ndim > 1


def _pair(x: torch.Tensor, weight: torch.Tensor, over: int) -> bool:
    """Whether rows are multiplied by a matrix over its dim `over`."""
    if weight.ndim != 2 or x.ndim == 0 or x.shape[-1] != weight.shape[over]:
        return False
    return fits(x, weight)


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
        known: Annotation | None = ctx.made.known
        if torch.is_grad_enabled():
            call = F.linear if ctx.over else torch.matmul
            (of_x,), again = twice(call, (x,), (ctx.made,), grad)
            return of_x, None, None, None, None, *again
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = dot(grad, weight, Dims((x.ndim - 1,), (1 - ctx.over,)))
        pair = (grad, x) if ctx.over else (x, grad)
        with _named(grad, known):
            of_weights = ctx.how.gradients(
                ctx.made,
                ctx.needs_input_grad[5:],
                pair,
                _by_device,
                functools.partial(_over_rows, known=known),
                columns=_columns(known),
            )
        return of_x, None, None, None, None, *of_weights


def _by_device(a: torch.Tensor, b: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """[devices, ..., out] times [devices, ..., in]: [devices, out, in]."""
    rows = list(range(1, a.ndim - 1))
    return seam.dot_general(a, b, rows, rows, [0], [0], dtype=dtype)


def _columns(known: Annotation | None) -> list[tuple[str, ...] | None]:
    """How the two factors of a weight's gradient are split besides their rows.

    A sequence that is split over the axis of one of the weight's dims is gathered: as
    the layer does it, for its own product or for its input's gradient.
    """
    if known is None:
        return [None, None]
    rest = without(known.spec, known.mesh.data_axes)
    found = [
        tuple(a for a in entry_axes(e) if known.mesh.axis_size(a) > 1) for e in rest
    ]
    return list(found) if sum(map(bool, found)) == 1 else [None, None]


def _over_rows(
    a: torch.Tensor, b: torch.Tensor, *, known: Annotation | None, dtype: torch.dtype
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
