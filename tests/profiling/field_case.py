"""The case from the field: two layers, weights over fsdp, batch over two axes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import nn

import profiling
import spmd
from profiling import Finding, Schedule, Verified
from spmd import Mesh, Plan, Program
from tests.profiling.compilers import need

MESH = Mesh({"replica": 2, "fsdp": 8})
BATCH = (("fsdp", "replica"), None)
PLAN = Plan({"*.weight": ("fsdp", None)})
TARGET = "h100:2x8"
UP = 12800 * 9600 * 2  # bytes of the first weight
DOWN = 9600 * 1280 * 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(12800, 9600, bias=False)
        self.down = nn.Linear(9600, 1280, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        return self.down(h)


def traced(plan: Plan) -> Program:
    """One AdamW step in bfloat16, split as a plan says."""
    with spmd.meta_parameters():
        model = Net().to(torch.bfloat16)
    spmd.shard_module(model, MESH, plan)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = (model(x) - y).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.empty(1600, 12800, dtype=torch.bfloat16, device="meta")
    y = torch.empty(1600, 1280, dtype=torch.bfloat16, device="meta")
    return spmd.trace(
        step, x, y, model=model, optimizer=optimizer, mesh=MESH, batch_spec=BATCH
    )


@functools.cache
def compiled() -> tuple[Program, Schedule]:
    """The case as it is."""
    program = traced(PLAN)
    return program, profiling.compile(program, need(TARGET))


@functools.cache
def verified() -> Verified:
    """The case with its fixes tried."""
    program, schedule = compiled()
    return profiling.verify(program, schedule, profiling.explain(program, schedule))


def gathered(findings: Sequence[Finding]) -> Finding:
    """The finding that the case is about."""
    (found,) = (f for f in findings if f.kind == "activation-gathered")
    return found
