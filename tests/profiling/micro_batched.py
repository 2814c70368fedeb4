"""Traced steps of several micro-batches whose gradients are added up in other ways."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import nn

import profiling
import spmd
from profiling._findings.case import Case
from spmd import Mesh, Program
from spmd._meshes.spec import Spec
from spmd._torch_xla.scan import loop
from tests.profiling.compilers import need

FSDP = Mesh({"fsdp": 8})
COPIES = Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2})
SPLIT: Spec = ("fsdp", None)
WHOLE: Spec = (None, None)
TARGETS = {8: "h100:1x8", 16: "h100:2x8"}
NUM, ROWS, DIM = 4, 2048, 256


def _case(program: Program) -> Case:
    target = need(TARGETS[program.num_devices])
    return Case(program, profiling.compile(program, target))


@functools.cache
def layers(
    dtype: torch.dtype = torch.float32,
    mesh: Mesh = FSDP,
    num: int = NUM,
    grad: Spec | None = None,
) -> Case:
    """Two layers computed in a dtype; the gradients are kept in float32.

    `grad` says how they are split where they are made.
    """
    with spmd.meta_parameters():
        model = nn.Sequential(*[nn.Linear(DIM, DIM, bias=False) for _ in range(2)])
    spmd.shard_module(model, mesh, spmd.Plan({"*.weight": SPLIT}))
    if grad is not None:
        for weight in model.parameters():
            spmd.mark_sharding(weight, mesh, SPLIT, grad=grad)
    optimizer = torch.optim.AdamW(model.parameters())
    rows = (mesh.data_axes, None)

    def step(batches: list[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros((), device=batches[0].device)
        for x in batches:
            h = x
            for weight in model.parameters():
                h = F.linear(h, weight.to(dtype))
                spmd.mark_sharding(h, mesh, rows)
            loss = h.float().square().mean()
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    batches = [torch.empty(ROWS, DIM, dtype=dtype, device="meta") for _ in range(num)]
    return _case(
        spmd.trace(
            step,
            batches,
            model=model,
            optimizer=optimizer,
            mesh=mesh,
            batch_spec=rows,
        )
    )


@functools.cache
def embedded() -> Case:
    """An embedding, a norm and a head."""
    with spmd.meta_parameters():
        model = nn.Sequential()
        model.add_module("embed", nn.Embedding(512, DIM))
        model.add_module("norm", nn.LayerNorm(DIM))
        model.add_module("head", nn.Linear(DIM, DIM, bias=False))
    plan = spmd.Plan(
        {
            "embed.weight": SPLIT,
            "head.weight": SPLIT,
            "norm.*": ("fsdp",),
        },
        outputs={"embed": SPLIT, "norm": SPLIT, "head": SPLIT},
    )
    spmd.shard_module(model, FSDP, plan)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batches: list[torch.Tensor]) -> None:
        for ids in batches:
            model(ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    ids = [torch.empty(ROWS, dtype=torch.int64, device="meta") for _ in range(NUM)]
    return _case(
        spmd.trace(
            step,
            ids,
            model=model,
            optimizer=optimizer,
            mesh=FSDP,
            batch_spec=("fsdp",),
        )
    )


@functools.cache
def looped(
    dtype: torch.dtype = torch.float32,
    mesh: Mesh = FSDP,
    start: Spec | None = None,
    by_hand: bool = False,
) -> Case:
    """One layer; a loop of the compiler adds up its gradients.

    `start` says how the sum starts; `by_hand` annotates it as the fix says.
    """
    with spmd.meta_parameters():
        model = nn.Linear(DIM, DIM, bias=False)
    spmd.shard_module(model, mesh, spmd.Plan({"weight": SPLIT}))
    optimizer = torch.optim.AdamW(model.parameters())
    rows = (mesh.data_axes, None)

    def whole(total: torch.Tensor) -> torch.Tensor:
        return spmd.mark_sharding(total, mesh, WHOLE) if by_hand else total

    def step(x: torch.Tensor) -> None:
        weight = model.weight

        def body(
            carry: list[torch.Tensor], given: list[torch.Tensor]
        ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            with torch.enable_grad():
                leaf = weight.detach().requires_grad_()
                h = F.linear(given[0], leaf.to(dtype))
                spmd.mark_sharding(h, mesh, rows)
                (grad,) = torch.autograd.grad(h.float().square().mean(), leaf)
            return [whole(whole(carry[0]) + grad)], []

        total = whole(torch.zeros_like(weight))
        if start is not None:
            spmd.mark_sharding(total, mesh, start)
        total = whole(loop(body, [total], [x])[0][0])
        if by_hand:
            total = spmd.mark_sharding(total * 1, mesh, SPLIT)
        weight.grad = total
        optimizer.step()
        optimizer.zero_grad()

    x = torch.empty(NUM, ROWS, DIM, dtype=dtype, device="meta")
    return _case(
        spmd.trace(
            step,
            x,
            model=model,
            optimizer=optimizer,
            mesh=mesh,
            batch_spec=(None, *rows),
        )
    )
