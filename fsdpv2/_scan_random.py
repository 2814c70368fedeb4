"""Random operations inside scanned layers: drawn by counting, from keys of the layers.

A layer is computed twice, in two loops over all layers, so its values cannot come from
a seed that moves on. Its key is drawn outside the loops, as other random values are;
inside, a draw is a function of the key, the draw's number and the element's index.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fsdpv2._counted_values import VALUES, drop_out, shape_and_dtype
from spmd._ops.counter_random import words

_UNTAGGED = ("random", "random_")  # torch does not mark them as random
_BASE = re.compile(r"(_|_like|_functional)$")


def draw_keys(num_layers: int) -> torch.Tensor:
    """Keys of random values, by the generator of the graph.

    Args:
        num_layers: How many.

    Returns:
        int32 [num_layers, 2].
    """
    low, high = -(2**31), 2**31
    return torch.randint(low, high, (num_layers, 2), dtype=torch.int32, device="xla")


class CountedDraws(TorchDispatchMode):
    """Have random operations inside this context draw by counting.

    Inside, an operation that cannot is a `ValueError`, and so is one on the host.

    Args:
        key: Gives the key, int32 [2]; asked once, and only if something is drawn.
        kind: Class of the layer, for errors.
    """

    def __init__(self, key: Callable[[], torch.Tensor], *, kind: str) -> None:
        super().__init__()
        self._make_key: Callable[[], torch.Tensor] | None = key
        self._kind = kind
        self._key: torch.Tensor | None = None
        self.drawn: list[tuple[str, tuple[int, ...]]] = []
        """Name and shape of each draw, in order."""

    def __exit__(self, *error: Any) -> None:
        """Let go of the key: it is a value of the loop, and must not outlive it."""
        self._key = self._make_key = None
        super().__exit__(*error)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded not in func.tags and name not in _UNTAGGED:
            return func(*args, **(kwargs or {}))
        given = _by_name(func, args, kwargs or {})
        if given.get("train", given.get("training", True)) is False:
            return func(*args, **(kwargs or {}))  # as in evaluation: nothing is drawn
        base = _BASE.sub("", name)
        self._check(name, base, given)
        shape, dtype = shape_and_dtype(given)
        if self._key is None:
            assert self._make_key is not None, "entered twice"
            self._key = self._make_key()
        drawn = words(self._key, shape, number=len(self.drawn))
        self.drawn.append((name, shape))
        if base == "native_dropout":
            return drop_out(drawn, given)
        value = VALUES[base](drawn, given, dtype)
        return args[0].copy_(value) if func._schema.is_mutable else value

    def _check(self, name: str, base: str, given: dict[str, Any]) -> None:
        device = _device(given)
        if base not in {*VALUES, "native_dropout"} or "out" in given:
            reason = f"aten.{name} cannot be drawn so"
        elif given.get("generator") is not None:
            reason = f"aten.{name} has a generator of its own"
        elif device.type != "xla":
            reason = f"aten.{name} draws on {device}, once for all layers"
        else:
            return
        raise ValueError(
            f"FSDPv2: scan_layers=True draws random values of a layer by counting, and "
            f"in {self._kind} {reason}; allowed are dropout and, on the XLA device, "
            f"{', '.join(sorted(VALUES))}. Draw it outside the layers, or leave "
            f"scan_layers out"
        )


def check_same(first: CountedDraws, second: CountedDraws, *, kind: str) -> None:
    """Refuse a layer whose second computation draws something else.

    Args:
        first: Of the forward pass.
        second: Of the backward pass.
        kind: Class of the layer.

    Raises:
        RuntimeError: They differ.
    """
    if first.drawn != second.drawn:
        raise RuntimeError(
            f"FSDPv2: scan_layers=True computes {kind} again in the backward pass, and "
            f"it drew {second.drawn} there, {first.drawn} before; have it draw alike "
            f"with and without gradients, or leave scan_layers out"
        )


def _by_name(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name, defaults filled in."""
    known = func._schema.arguments
    given = {a.name: a.default_value for a in known if a.has_default_value()}
    given |= {a.name: value for a, value in zip(known, args, strict=False)}
    return given | kwargs


def _device(given: dict[str, Any]) -> torch.device:
    for value in given.values():
        if isinstance(value, torch.Tensor):
            return value.device
    return torch.device(given.get("device") or torch.get_default_device())
