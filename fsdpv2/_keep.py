"""Keep gradients of weights in parts: which uses of a weight are known.

What is not is left to torch, and its gradient is reduced in each backward pass.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from fsdpv2._broadcast import Copies, Product, Sum, is_broadcast
from fsdpv2._keeper import Keeper
from fsdpv2._reduce import Reducing, fits
from fsdpv2._unreduced_conv import Convolution, Windows
from fsdpv2._unreduced_einsum import Einsum, Letters
from fsdpv2._unreduced_rows import Norm, NormRows
from spmd._capture.prime import original_of


@contextmanager
def keeping(
    masters: Mapping[torch.Tensor, torch.Tensor],
    into: Keeper,
    *,
    dtype: torch.dtype | None,
) -> Iterator[None]:
    """Add up gradients of weights before they are reduced.

    Args:
        masters: The tensor that gets the gradient, by the one that is computed with.
        into: Where they are added up.
        dtype: What they are reduced in; None for what is computed in.

    Yields:
        Nothing.
    """
    with _Keeping(masters, into, dtype):
        yield


class _Keeping(Reducing):
    def __init__(
        self,
        masters: Mapping[torch.Tensor, torch.Tensor],
        into: Keeper,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(masters, dtype, into)
        self._keeper = into
        self._seq_first = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, kind = kwargs or {}, original_of(func)
        if self.stands_aside():
            return func(*args, **kwargs)
        value = self.makings.call(kind, func, args, kwargs)
        if value is not None:
            return value
        use = _USES.get(kind)
        if use is not None:
            return use(self, func, *args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    def linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: Any = None
    ) -> Any:
        turned = self._turned(input) if self._seq_first else None
        if turned is None or self.makings.of(weight) is None:
            return super().linear(input, weight, bias)
        out = super().linear(turned, weight, bias).transpose(0, 1)
        return out.reshape(*input.shape[:-1], -1)

    def _turned(self, x: torch.Tensor) -> torch.Tensor | None:
        """[seq, rows, width] or [seq * rows, width] as [rows, seq, width]."""
        if x.ndim == 2 and len(x) % self._keeper.rows == 0:
            x = x.unflatten(0, (-1, self._keeper.rows))
        turned = x.transpose(0, 1) if x.ndim == 3 else x
        return turned if x.ndim == 3 and self._keeper.is_batch(turned) else None

    def attention(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """That of `nn.MultiheadAttention`, of which a mode sees no product."""
        before, self._seq_first = self._seq_first, True
        try:
            with self:
                return _attention(*args, **kwargs)
        finally:
            self._seq_first = before

    def layer_norm(
        self,
        _: Any,
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

    def rms_norm(
        self,
        _: Any,
        input: torch.Tensor,
        normalized_shape: Sequence[int],
        weight: Any = None,
        eps: float | None = None,
    ) -> Any:
        def call(x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
            return F.rms_norm(x, normalized_shape, weight, eps)

        # Without `eps` it depends on the dtype.
        norm = Norm(call, len(normalized_shape), widens=eps is not None)
        return self._norm(norm, input, (weight, None))

    def _norm(
        self, norm: Norm, input: torch.Tensor, weights: Sequence[torch.Tensor | None]
    ) -> Any:
        self._keeper.see(input)
        masters = [self.makings.weight(w) for w in weights]
        pairs = [(w, m) for w, m in zip(weights, masters, strict=True) if w is not None]
        if not pairs or not all(m is not None and fits(input, w) for w, m in pairs):
            return norm.call(input, *weights)
        made = [self.makings.of(w) for w in weights]
        return NormRows.apply(norm, input, made, self.how(input), *masters)

    def group_norm(
        self,
        func: Any,
        input: Any,
        num_groups: int,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
    ) -> Any:
        if not self._knows(input, weight, bias):
            return func(input, num_groups, weight, bias, eps)

        def call(x: torch.Tensor) -> torch.Tensor:
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            return func(wide, num_groups, None, None, eps)  # all of it is wide in torch

        return self._scaled(call, input, weight, bias)

    def batch_norm(
        self,
        func: Any,
        input: Any,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        *rest: Any,
        **more: Any,
    ) -> Any:
        known = running_mean, running_var
        if not self._knows(input, weight, bias):
            return func(input, *known, weight, bias, *rest, **more)

        def call(x: torch.Tensor) -> torch.Tensor:
            return func(x, *known, None, None, *rest, **more)

        return self._scaled(call, input, weight, bias)

    def _knows(self, x: torch.Tensor, *weights: Any) -> bool:
        given = [w for w in weights if w is not None]
        return bool(given) and all(
            self.makings.weight(w) is not None
            and fits(x, w)
            and w.shape == x.shape[1:2]
            for w in given
        )

    def _scaled(self, call: Callable[..., Any], x: torch.Tensor, *weights: Any) -> Any:
        """Normalise, then multiply by a weight [channels], and add a bias."""
        out = call(x)
        for value, weight in zip((Product, Sum), weights, strict=True):
            if weight is not None:
                out = self._channels(value, out, weight)
        return out.to(x.dtype)

    def product(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        return self._broadcast(Product, func, args, kwargs)

    def sum(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        return self._broadcast(Sum, func, args, kwargs)

    def _broadcast(
        self, value: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A sum or product with a weight, such as norms of models' own end with."""
        for one in args:
            if isinstance(one, torch.Tensor):
                self._keeper.see(one)
        if len(args) == 2 and not kwargs:
            for weight, x in (args, args[::-1]):
                made = self.makings.of(weight)
                if made is None or not isinstance(x, torch.Tensor):
                    continue
                if fits(x, weight) and is_broadcast(weight, x):
                    how = self.how(x)
                    return value.apply(x, weight.detach(), made, how, *made.masters)
        return self.spread(func, *args, **kwargs)

    def spread(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Give a function that knows no weights a copy of them for each row.

        The compiler makes no copies, and their gradients are sums over rows.
        """
        given = [*args, *kwargs.values()]
        like = next((x for x in given if self._is_rows(x)), None)
        if like is None or not any(self._meets(x, like) for x in given):
            return func(*args, **kwargs)

        def over(x: Any) -> Any:
            if not self._meets(x, like):
                return x
            shape = x.shape[1:] if x.ndim == like.ndim else x.shape
            ones = [1] * (like.ndim - 1 - len(shape))
            return self.expand(torch.Tensor.expand, x, len(like), *ones, *shape)

        return func(*map(over, args), **{k: over(x) for k, x in kwargs.items()})

    def _is_rows(self, x: Any) -> bool:
        if not isinstance(x, torch.Tensor) or self.makings.of(x) is not None:
            return False
        return self._keeper.is_batch(x)

    def _meets(self, x: Any, like: torch.Tensor) -> bool:
        if self.makings.of(x) is None or not is_broadcast(x, like):
            return False
        return x.ndim > 0 or x.dtype == like.dtype  # else torch chooses others' dtype

    def attend(
        self,
        func: Any,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        *rest: Any,
        **more: Any,
    ) -> Any:
        """With a weight for a mask: how much a distance counts, as T5 has it."""
        mask = attn_mask
        if self.makings.of(mask) is not None and mask.ndim == query.ndim:
            mask = self.expand(torch.Tensor.expand, mask, len(query), *mask.shape[1:])
        return func(query, key, value, mask, *rest, **more)

    def prelu(self, func: Any, input: torch.Tensor, weight: torch.Tensor) -> Any:
        if self.makings.of(weight) is None or not fits(input, weight):
            return func(input, weight)
        if weight.shape not in ((1,), input.shape[1:2]):
            return func(input, weight)
        low = self._channels(Product, input, weight)
        return torch.where(input > 0, input, low)

    def convolve(
        self,
        func: Any,
        input: Any,
        weight: Any,
        bias: Any = None,
        *rest: Any,
        **more: Any,
    ) -> Any:
        made = self.makings.of(weight)
        known = made is not None and input.ndim == weight.ndim and fits(input, weight)
        if known and bias is not None:
            known = bias.dtype == weight.dtype and bias.shape == weight.shape[:1]
        if made is None or not known:
            return func(input, weight, bias, *rest, **more)
        call = Windows(func, rest, more)
        values = input, weight.detach()
        how = self.how(input)
        out: Any = Convolution.apply(call, *values, made, how, *made.masters)
        return out if bias is None else self._channels(Sum, out, bias)

    def _channels(self, value: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
        """[rows, channels, ...] plus or times a weight [channels]."""
        shape = (-1, *[1] * (x.ndim - 2))
        seen = self._made(torch.Tensor.to, weight, x.dtype)
        seen = self._made(torch.Tensor.view, seen, shape)
        func = torch.add if value is Sum else torch.mul
        return self._broadcast(value, func, (x, seen), {})

    def _made(self, func: Any, *args: Any) -> Any:
        value = self.makings.make(func, args, {})
        return func(*args) if value is None else value

    def expand(self, func: Any, weight: torch.Tensor, *sizes: Any, **more: Any) -> Any:
        """A weight for each row, as tokens of classes are."""
        made, value = self.makings.of(weight), func(weight, *sizes, **more)
        if made is None:
            return value
        if not self._keeper.is_batch(value) or not is_broadcast(weight, value):
            return self._made(torch.broadcast_to, weight, value.shape)
        how = self.how(weight)
        return Copies.apply(weight.detach(), value.shape, made, how, *made.masters)

    def einsum(self, func: Any, equation: Any, *operands: Any) -> Any:
        if len(operands) == 2 and isinstance(equation, str):
            for i, weight in enumerate(operands):
                x, made = operands[1 - i], self.makings.of(weight)
                letters = Letters.read(equation, weight=i) if made is not None else None
                if letters is not None and fits(x, weight) and letters.fit(x, weight):
                    return self._contract(letters, x, weight)
        return func(equation, *operands)

    def _contract(self, letters: Letters, x: torch.Tensor, weight: torch.Tensor) -> Any:
        made = self.makings.of(weight)
        assert made is not None
        how = self.how(x)
        return Einsum.apply(letters, x, weight.detach(), made, how, *made.masters)

    def matmul(self, func: Any, x: Any, weight: Any) -> Any:
        if self.makings.of(x) is not None and self.makings.of(weight) is None:
            letters = Letters("bis", "oi", "bos")
            if letters.fit(weight, x) and fits(weight, x):
                return self._contract(letters, weight, x)
        return super().matmul(func, x, weight)

    def look_up(self, func: Any, weight: Any, index: Any) -> Any:
        """Rows of a table by their numbers."""
        if self.experts.are_looked_up(weight, index):
            return self.experts.look_up(weight, index)
        if isinstance(index, torch.Tensor) and self.makings.weight(weight) is not None:
            integer = index.dtype in (torch.int32, torch.int64)
            if weight.ndim == 2 and integer and index.device == weight.device:
                return self.embedding(index % len(weight), weight)
        return func(weight, index)


def _seen_inside(func: types.FunctionType) -> Any:
    """A function of torch written in Python, which modes see the calls of."""
    names = {**func.__globals__, "has_torch_function": lambda _: False}
    made = types.FunctionType(
        func.__code__, names, func.__name__, func.__defaults__, func.__closure__
    )
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _functions(*names: str) -> Iterator[Any]:
    for holder in (torch, torch.Tensor, F):
        yield from (getattr(holder, n) for n in names if hasattr(holder, n))


_attention = _seen_inside(F.multi_head_attention_forward)
_USES: dict[Any, Callable[..., Any]] = {
    F.layer_norm: _Keeping.layer_norm,
    F.rms_norm: _Keeping.rms_norm,
    F.group_norm: _Keeping.group_norm,
    **dict.fromkeys((F.batch_norm, F.instance_norm), _Keeping.batch_norm),
    F.multi_head_attention_forward: _Keeping.attention,
    F.scaled_dot_product_attention: _Keeping.attend,
    torch.einsum: _Keeping.einsum,
    torch.Tensor.expand: _Keeping.expand,
    torch.Tensor.__getitem__: _Keeping.look_up,
    F.prelu: _Keeping.prelu,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _Keeping.convolve),
    **dict.fromkeys(_functions("mul", "__mul__", "__rmul__"), _Keeping.product),
    **dict.fromkeys(_functions("add", "__add__", "__radd__"), _Keeping.sum),
    **dict.fromkeys(
        (
            *_functions("sub", "__sub__", "__rsub__", "rsub", "div", "true_divide"),
            *_functions("__truediv__", "__rtruediv__", "pow", "__pow__", "where"),
            *_functions("maximum", "minimum", "addcmul", "addcdiv", "lerp"),
            *_functions("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__"),
            *_functions("__imul__", "__itruediv__"),
        ),
        _Keeping.spread,
    ),
}
