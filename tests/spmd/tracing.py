"""Small models to trace, on any device, and what to ask of a traced program."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import Optimizer

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh, Plan, Program
from spmd._program.stablehlo import module_text
from spmd._torch_xla import graph as torch_xla_graph
from tests.spmd.training import Training, simple

MESH = Mesh({"fsdp": 8})
ROWS, SEQ, VOCAB, DIM = 8, 4, 32, 16


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, 2 * DIM)
        self.drop = nn.Dropout(dropout)
        self.down = nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x).relu()
        return self.down(self.drop(hidden))


class Net(nn.Module):
    """An embedding, two blocks and a tied head, and a buffer with values."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Mlp(dropout) for _ in range(2))
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, DIM))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) * self.scale
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def net(where: str = "meta", **options: Any) -> Net:
    """A `Net` whose parameters are on meta, the CPU or the XLA device."""
    torch.manual_seed(0)
    if where == "meta":
        with spmd.meta_parameters():
            return Net(**options)
    model = Net(**options)
    return spmd.to_device(model) if where == "xla" else model


def wrapped(where: str = "meta", mesh: Mesh = MESH, **options: Any) -> FSDPv2:
    """A `Net`, every parameter of it split over `fsdp`."""
    return FSDPv2(net(where, **options), mesh, min_shard_elements=1)


def adamw(model: nn.Module, **options: Any) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), **{"lr": 0.01, **options})


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(batch["ids"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def step_of(model: nn.Module, optimizer: Optimizer | None) -> Callable[..., Any]:
    """The step everybody writes."""

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = loss_of(model, batch)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return step


def described(rows: int = ROWS) -> dict[str, Any]:
    """A batch that is only shapes."""
    ids = jax.ShapeDtypeStruct((rows, SEQ), "int64")
    return {"ids": ids, "labels": ids}


def batch_of(seed: int = 0, rows: int = ROWS) -> dict[str, torch.Tensor]:
    """A batch on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (rows, SEQ), generator=generator)
    return {"ids": ids, "labels": ids.roll(1, 1)}


def traced(model: nn.Module, batch: Any = None, **options: Any) -> Program:
    """A training step of `model` with AdamW, traced."""
    optimizer = adamw(model)
    batch = described() if batch is None else batch
    step = step_of(model, optimizer)
    return spmd.trace(step, batch, model=model, optimizer=optimizer, **options)


def by_hand(where: str, mesh: Mesh) -> Net:
    """A `Net` annotated tensor by tensor."""
    model = net(where)
    for name, parameter in model.named_parameters():
        spec = ("fsdp", *[None] * (parameter.ndim - 1))
        spmd.mark_sharding(parameter, mesh, spec, grad=spec, name=name)
    return model


PLAN = Plan(
    {
        "embed.weight": ("fsdp", None),
        "head.weight": ("fsdp", None),
        "layers.*.up.weight": ("tensor", "fsdp"),
        "layers.*.up.bias": ("tensor",),
        "layers.*.down.weight": ("fsdp", "tensor"),
    },
    outputs={
        "layers.*.up": ("fsdp", None, "tensor"),
        "layers.*": ("fsdp", None, None),
    },
)


def by_plan(where: str, mesh: Mesh) -> Net:
    """A `Net` annotated by a plan."""
    return spmd.shard_module(net(where), mesh, PLAN)


def locations(program: Program, kind: str) -> list[tuple[str, str, int]]:
    """``op_name``, file and line of each operation of a kind, in order."""
    text = module_text(program.module, locations=True)
    named = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
    found = []
    for reference in re.findall(rf"stablehlo\.{kind}\b.* loc\((#loc\d*)\)", text):
        where = named[reference]
        for _ in range(3):
            where = re.sub(r"#loc\d*", lambda m: named[m[0]], where)
        parts = re.findall(r'"([^"]*)"(?::(\d+))?', where)
        name = next((t for t, line in parts if not line), "")
        file, line = next(((t, int(n)) for t, n in parts if n), ("", 0))
        found.append((name, file, line))
    return found


def training() -> Training:
    """Some steps on the devices, with dropout."""
    torch.manual_seed(0)
    model = wrapped("xla", dropout=0.2)
    made = simple(model, adamw(model))
    made.step = step_of(model, made.optimizer)
    made.batches = [spmd.shard_batch(batch_of(i), MESH) for i in range(4)]
    return made


def torch_xla_seed(seed: int) -> None:
    """Set the seed that torch_xla's devices draw from."""
    torch_xla_graph.set_seed(seed)
