"""Random draws of a region that is computed twice: the second time they are the same.

A graph of torch_xla has one seed, which moves on with each operation that draws, and
nothing can turn it back. So what was drawn is kept: a dropout mask as one byte for each
element, anything else as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Drawn = list[tuple[torch.Tensor, torch.dtype]]


class KeepDraws(TorchDispatchMode):
    """Keep what random operations draw inside this context.

    Args:
        drawn: Gets what is drawn, in order.
    """

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self._drawn = drawn

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if _is_random(func):
            # A copy, since what follows may write into what was drawn.
            is_mask = func.overloadpacket.__name__.startswith("bernoulli")
            kept = out.detach() != 0 if is_mask else out.detach().clone()
            self._drawn.append((kept, out.dtype))
        return out


class RepeatDraws(TorchDispatchMode):
    """Have random operations draw the same again inside this context.

    Args:
        drawn: What `KeepDraws` kept.
    """

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self._drawn = drawn
        self._next = iter(drawn)

    def __enter__(self) -> Any:
        self._next = iter(self._drawn)
        return super().__enter__()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not _is_random(func):
            return func(*args, **(kwargs or {}))
        value, dtype = next(self._next)
        return args[0].copy_(value) if func._schema.is_mutable else value.to(dtype)


def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags
