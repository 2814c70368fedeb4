"""Tensors that are made of weights alone, such as a transpose, or one plus a weight.

Every microbatch makes them anew, of the same weights. So what each adds to the gradient
of such a tensor may be kept in parts as that of a weight is, and what made it be undone
part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from fsdpv2._keeper import Keeper
from spmd import Annotation
from spmd._capture.prime import original_of
from spmd._marking.mark import get_sharding
from spmd._names.rebuild import leaves, rebuild
from spmd._vocab.rows import add_rows

Given = tuple[torch.Tensor, "Made"]


def _itself(parts: torch.Tensor) -> Sequence[torch.Tensor]:
    return (parts,)


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """What a tensor is made of.

    Attributes:
        masters: The weights that get its gradient.
        value: The tensor, with its history.
        undo: Makes of parts of its gradient [devices, *shape] those of each weight.
    """

    masters: tuple[torch.Tensor, ...]
    value: torch.Tensor
    undo: Callable[[torch.Tensor], Sequence[torch.Tensor]] = _itself

    @property
    def is_weight(self) -> bool:
        """Whether it is a weight as it is."""
        return self.undo is _itself

    @property
    def is_master(self) -> bool:
        """Whether it is the very tensor that gets its gradient."""
        return self.value is self.masters[0]

    @property
    def known(self) -> Annotation | None:
        """How it is split, where it is a weight as it is."""
        return get_sharding(self.masters[0]) if self.is_weight else None

    def gradients(self, grad: torch.Tensor) -> Iterator[torch.Tensor]:
        """The gradients of the weights.

        Args:
            grad: That of the tensor.

        Yields:
            One for each weight.
        """
        if self.is_weight:
            yield grad
            return
        for parts in self.undo(grad.unsqueeze(0)):
            yield parts.squeeze(0)


class Makings:
    """Knows of which weights tensors are made.

    Args:
        masters: The tensor that gets the gradient, by the one that is computed with.
        into: Where gradients are added up; None where no tensors are made of them.
    """

    def __init__(
        self,
        masters: Mapping[torch.Tensor, torch.Tensor],
        into: Keeper | None = None,
    ) -> None:
        self._into = into
        # With the tensors, so that no other gets the id of one.
        self._found = {
            id(t): (t, t._version, Made((m,), t)) for t, m in masters.items()
        }

    def of(self, tensor: Any) -> Made | None:
        """What a tensor is made of.

        Args:
            tensor: Anything.

        Returns:
            None where it is no tensor, or not made of weights alone.
        """
        found = self._found.get(id(tensor))
        if found is None:
            return None
        value, version, made = found
        if not made.is_weight and (value.retains_grad or value._backward_hooks):
            return None  # somebody looks at its gradient
        return made if value._version == version else None

    def weight(self, tensor: Any) -> torch.Tensor | None:
        """The weight that gets the gradient of a tensor.

        Args:
            tensor: Anything.

        Returns:
            None where it is no weight as it is.
        """
        made = self.of(tensor)
        return made.masters[0] if made is not None and made.is_weight else None

    def call(
        self, kind: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a function that makes tensors of weights alone, and note that.

        Args:
            kind: A function of torch.
            func: What to call for it.
            args: For it.
            kwargs: For it.

        Returns:
            Its result, or None where it is none of that kind; it was not called then.
        """
        return self.make(func, args, kwargs) if kind in _MAKERS else None

    def make(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same of a function that is known to be of that kind.

        Args:
            func: What to call.
            args: For it.
            kwargs: For it.
        """
        given: dict[int, Given] = {}
        for _, leaf in leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                made = self.of(leaf)
                if made is not None:
                    given[id(leaf)] = leaf, made
                elif not self._is_constant(leaf):
                    return None
        if not given or (len(given) > 1 and original_of(func) is torch.Tensor.to):
            return None

        def kept(leaf: Any) -> Any:
            is_other = isinstance(leaf, torch.Tensor) and id(leaf) not in given
            return leaf.clone() if is_other else leaf

        # What it was called with is called again: lists and tensors may change before.
        args, kwargs = rebuild((args, kwargs), kept)
        value = func(*args, **kwargs)
        several = isinstance(value, list | tuple)
        for i, one in enumerate(value if several else (value,)):
            if not isinstance(one, torch.Tensor) or id(one) in given:
                continue
            if not one.is_floating_point() or not one.requires_grad:
                continue
            part = i if several else None
            made = _Step(func, args, kwargs, tuple(given.values()), part).made(one)
            if all(m.requires_grad for m in made.masters):
                self._note(one, made)
        return value

    def _is_constant(self, tensor: torch.Tensor) -> bool:
        """Whether it may meet a weight: a mask that is the same for all rows, say."""
        if self._into is None or tensor.requires_grad:
            return False
        return tensor.is_floating_point() and not self._into.is_batch(tensor)

    def note_rows(
        self, rows: torch.Tensor, table: torch.Tensor, ids: torch.Tensor, padding: int
    ) -> None:
        """Say that rows of a weight were looked up, the same for every microbatch.

        Args:
            rows: What was found [..., columns].
            table: The weight [vocab, columns] that gets the gradient.
            ids: [...].
            padding: Row that has no gradient, or -1.
        """

        def undo(parts: torch.Tensor) -> Sequence[torch.Tensor]:
            if padding >= 0:
                parts = parts.masked_fill((ids == padding).unsqueeze(-1), 0)
            each = ids.expand(len(parts), *ids.shape)
            return (add_rows(each, parts, len(table)),)

        if rows.requires_grad:
            self._note(rows, Made((table,), rows, undo))

    def _note(self, value: torch.Tensor, made: Made) -> None:
        self._found[id(value)] = value, value._version, made


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A call that made a tensor, or several, of others.

    Attributes:
        func: What was called.
        args: For it.
        kwargs: For it.
        given: The tensors among its arguments, and of what these are made.
        part: Which of the tensors that it gives; None where it gives one.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: Sequence[Given]
    part: int | None = None

    def made(self, value: torch.Tensor) -> Made:
        """Of which weights the value is, each once."""
        masters = {id(m): m for _, made in self.given for m in made.masters}
        return Made(tuple(masters.values()), value, self._undo)

    def _undo(self, parts: torch.Tensor) -> Sequence[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        for (_, made), grad in zip(self.given, self._gradients(parts), strict=True):
            for master, part in zip(made.masters, made.undo(grad), strict=True):
                known = found.get(id(master))
                found[id(master)] = part if known is None else known + part
        return list(found.values())

    def _gradients(self, parts: torch.Tensor) -> Sequence[torch.Tensor]:
        """Of the tensors that were given, [devices, *shape]."""
        values = {id(t): t.detach().to(parts.dtype) for t, _ in self.given}
        asked = [values[id(t)].requires_grad_() for t, _ in self.given]

        def instead(leaf: Any) -> Any:
            return values.get(id(leaf), leaf)

        with torch.enable_grad():
            args, kwargs = rebuild((self.args, self.kwargs), instead)
            value = self.func(*args, **kwargs)
            value = value if self.part is None else value[self.part]
        return torch.autograd.grad(
            value, asked, parts.to(value.dtype), is_grads_batched=True
        )


def _functions(*names: str) -> Iterator[Any]:
    for name in names:
        for holder in (torch, torch.Tensor, F):
            if hasattr(holder, name):
                yield getattr(holder, name)


_MAKERS = frozenset(
    {
        *_functions("t", "transpose", "swapaxes", "swapdims", "permute", "movedim"),
        *_functions("moveaxis", "adjoint", "view", "reshape", "flatten", "unflatten"),
        *_functions("squeeze", "unsqueeze", "narrow", "stack", "cat", "concat"),
        *_functions("split", "chunk", "unbind", "tensor_split"),
        *_functions("__getitem__", "contiguous", "clone", "to", "float", "double"),
        *_functions("half", "bfloat16", "type", "neg", "negative", "exp", "square"),
        *_functions("sigmoid", "tanh", "softplus", "sqrt", "rsqrt", "reciprocal"),
        *_functions("add", "sub", "rsub", "mul", "multiply", "div", "true_divide"),
        *_functions("__add__", "__radd__", "__sub__", "__rsub__", "__mul__"),
        *_functions("__rmul__", "__truediv__", "__rtruediv__", "__neg__"),
        *(getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH")),
    }
)
"""Functions whose gradients say by themselves what became of each element. What looks
up by ids is none, as the compiler would not do that device by device."""
