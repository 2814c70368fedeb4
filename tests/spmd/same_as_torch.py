"""Compare what `sharding_preserving` replaces with torch on the CPU in float64."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_xla

import spmd
from tests.on_device import sync

Function = Callable[..., torch.Tensor]
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 2e-2}
"""Of the largest value: some roundings of 2^-24 over sums of some dozens of terms, and
three of 2^-9 where results and gradients are rounded on the way."""


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator)


def with_gradients(function: Function, args: Sequence[torch.Tensor]) -> list[Any]:
    """The result, and the gradient of each floating argument for a given one of it."""
    args = [a.requires_grad_() if a.is_floating_point() else a for a in args]
    result = function(*args)
    grad = torch.linspace(-1.0, 2.0, result.numel()).reshape(result.shape)
    grad = grad.to(result.dtype).to(result.device)
    asked = [a for a in args if a.requires_grad]
    found = torch.autograd.grad(result, asked, grad)
    return [result.detach(), *found]


def check_same(
    function: Function,
    *args: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
) -> str:
    """Value and gradients are torch's; gives the graph that computed them.

    `scale` is a factor for the tolerance.
    """
    args = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    wide = [a.double() if a.is_floating_point() else a.clone() for a in args]
    wanted = with_gradients(function, wide)
    with spmd.sharding_preserving():
        got = with_gradients(function, [a.clone().to("xla") for a in args])
    text = graph(*got)
    sync()
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.shape == b.shape and a.dtype == dtype, i
        gap = (a.cpu().double() - b).abs().max()
        assert gap <= scale * TOLERANCE[dtype] * b.abs().max(), f"{i}: {gap}"
    return text


def graph(*tensors: torch.Tensor) -> str:
    """HLO that ends in these tensors."""
    return torch_xla._XLAC._get_xla_tensors_hlo(list(tensors))


def shapes_of(text: str, opcode: str) -> list[list[int]]:
    """Shape of the result of each operation of a kind, in order."""
    found = re.findall(rf"= \w+\[([\d,]*)\]\S* {opcode}\(", text)
    return [[int(n) for n in shape.split(",") if n] for shape in found]
