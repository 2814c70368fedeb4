"""Small steps whose matmuls stand in loops, or are convolutions."""

from __future__ import annotations

import functools

import torch
from torch import nn

import profiling
import spmd
from profiling._findings.case import Case
from spmd import Program
from spmd._torch_xla.scan import loop
from tests.profiling.compilers import need

MESH = spmd.Mesh({"replica": 2, "fsdp": 4})
BATCH = ("fsdp", "replica")


class Loop(nn.Module):
    """Three layers in a loop; their weights are stacked."""

    def __init__(self, hidden: spmd.Spec | None) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(3, 256, 512))
        self.down = nn.Parameter(torch.empty(3, 512, 256))
        self.hidden = hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def body(
            carry: list[torch.Tensor], weights: list[torch.Tensor]
        ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            h = carry[0] @ weights[0].T
            if self.hidden is not None:
                spmd.mark_sharding(h, MESH, self.hidden)
            return [(h @ weights[1].T).tanh()], []

        return loop(body, [x], [self.up, self.down])[0][0]


@functools.cache
def looped(hidden: spmd.Spec | None = None) -> Case:
    """A forward pass; `hidden` says how the first product of each layer is split."""
    with spmd.meta_parameters():
        model = Loop(hidden)
    spmd.shard_module(model, MESH, spmd.Plan({"*": (None, "fsdp", None)}))
    x = torch.empty(1024, 512, device="meta")
    program = spmd.trace(model, x, model=model, mesh=MESH, batch_spec=(BATCH, None))
    return _case(program)


class Convolved(nn.Module):
    """Two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, 4 * channels, 3, padding=1, bias=False)
        self.two = nn.Conv2d(4 * channels, channels, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.one(x)
        return self.two(h)


@functools.cache
def convolved(size: int, channels: int) -> Case:
    """A step; on small images with many channels rows are less than weights."""
    with spmd.meta_parameters():
        model = Convolved(channels)
    spec = ("fsdp", None, None, None)
    spmd.shard_module(model, MESH, spmd.Plan({"*.weight": spec}))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    x = torch.empty(16, channels, size, size, device="meta")
    rows = (BATCH, None, None, None)
    return _case(spmd.trace(step, x, model=model, mesh=MESH, batch_spec=rows))


def _case(program: Program) -> Case:
    return Case(program, profiling.compile(program, need("h100:1x8")))
