"""`shard_as`: two values get one sharding, whichever it becomes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch

_ELEMENT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "ui8",
    torch.bool: "i1",
}


def shard_as(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tie two values: whatever sharding one gets, the other gets too.

    Their gradients are tied likewise. The ties of a step are numbered from its start
    (`torch_xla.sync`), so that every step is the same program.

    Args:
        a: A tensor on the XLA device.
        b: Another of the same shape.

    Returns:
        Both, tied; use at least one of them.

    Raises:
        TypeError: A dtype without a tie, such as complex.
        ValueError: Another shape or device.
    """
    for label, tensor in (("a", a), ("b", b)):
        if tensor.device.type != "xla":
            raise ValueError(
                f"shard_as: {label} {list(tensor.shape)} is on {tensor.device}; move "
                f"it to the XLA device first"
            )
        if tensor.dtype not in _ELEMENT:
            raise TypeError(
                f"shard_as: {label} {list(tensor.shape)} is {tensor.dtype}; one of "
                f"{', '.join(str(d) for d in _ELEMENT)} is needed"
            )
    if a.shape != b.shape:
        raise ValueError(
            f"shard_as: shapes {list(a.shape)} and {list(b.shape)} differ; only "
            f"tensors of one shape can share a sharding"
        )
    return _Tie.apply(a, b)  # pyright: ignore[reportReturnType]


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        return _tie(a, b)

    @staticmethod
    def backward(
        ctx: Any, *grads: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        a, b = grads
        return (a, b) if a is None or b is None else _tie(a, b)


_groups: Iterator[int] = itertools.count()


def _next_group() -> int:
    """A number that no other tie of this step has, and that this one has each step."""
    group = next(_groups)
    if group == 0:
        from spmd._torch_xla import seam

        seam.at_step_end(_count_again)
    return group


def _count_again() -> None:
    global _groups
    _groups = itertools.count()


def _tie(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from spmd._torch_xla import seam

    kinds = _kind(a), _kind(b)
    first, second = seam.call_hlo("shard_as", [a, b], _hlo(_next_group(), *kinds))
    return first, second


def _kind(tensor: torch.Tensor) -> str:
    return "x".join((*map(str, tensor.shape), _ELEMENT[tensor.dtype]))


@functools.lru_cache(maxsize=1024)
def _hlo(group: int, a: str, b: str) -> bytes:
    """XLA's custom call that names no sharding, only the group that shares one."""
    from spmd._pjrt import client as pjrt

    mark = f'{{mhlo.sharding = "{{unknown shard_as {group}}}"}}'
    a, b = f"tensor<{a}>", f"tensor<{b}>"
    return pjrt.hlo_from_stablehlo(f"""
        module @shard_as {{
          func.func public @main(%a: {a}, %b: {b}) -> ({a}, {b}) {{
            %x = stablehlo.custom_call @Sharding(%a) {mark} : ({a}) -> {a}
            %y = stablehlo.custom_call @Sharding(%b) {mark} : ({b}) -> {b}
            return %x, %y : {a}, {b}
          }}
        }}""")
