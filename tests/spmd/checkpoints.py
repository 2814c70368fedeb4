"""Trainings that are saved, restarted and compared bit by bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import spmd
from spmd import Mesh
from spmd._torch_xla import graph as torch_xla_graph
from tests.on_device import sync
from tests.spmd.training import mlp, wrapped

MESHES = {
    "8": (Mesh({"a": 8}), ("a", None)),
    "4x2": (Mesh({"a": 4, "b": 2}), ("a", "b")),
    "2x4": (Mesh({"a": 2, "b": 4}), (None, ("a", "b"))),
    "copies": (Mesh({"a": 4, "b": 2}), ("b", None)),
}
"""Uneven for the sizes below: 13 and 50 divide by none of these but 2."""


class Uneven(nn.Module):
    """Tied weights, buffers of both kinds, a scalar and an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(13, 50, bias=False)
        self.head = nn.Linear(13, 50)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.narrow = nn.Parameter(torch.randn(9, 3).bfloat16())
        self.register_buffer("count", torch.arange(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(x) * self.scale + self.narrow.float().sum()
        return y @ self.embed.weight


def split(model: nn.Module, name: str) -> nn.Module:
    """A model on the devices, every matrix and vector split over a mesh."""
    mesh, spec = MESHES[name]
    spmd.to_device(model)
    for key, parameter in model.named_parameters():
        spmd.mark_sharding(parameter, mesh, spec[: parameter.ndim], name=key)
    return model


def on_cpu(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all that ``state_dict()`` has."""
    return {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}


def moments(model: nn.Module, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Copies of the optimizer's state by parameter."""
    return {
        f"{name}.{key}": value.detach().cpu().clone()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    """Not one bit may differ."""
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert value.dtype == two[key].dtype, key
        assert torch.equal(value, two[key]), key


def with_moments(model: nn.Module) -> Optimizer:
    """AdamW after a step with gradients that were made up, on any device."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        made = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        parameter.grad = made.to(parameter.device)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


@dataclass
class Run:
    """A training with everything that a restart has to bring back."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: Any
    loader: spmd.ShardedLoader[Any]
    step: Callable[[Any], Any]
    lazy: bool
    batches: Iterator[Any] | None = None

    @property
    def kept(self) -> dict[str, Any]:
        """What is saved besides model and optimizer."""
        return {"scheduler": self.scheduler, "loader": self.loader}

    def go(self, num: int) -> list[float]:
        """Losses of the next steps, over as many epochs as that takes."""
        if self.batches is None:
            self.batches = self._all_batches()
        losses = []
        for batch in itertools.islice(self.batches, num):
            loss = self.step(batch)
            if self.lazy:
                sync()
            self.scheduler.step()
            losses.append(float(loss.detach()))
        return losses

    def _all_batches(self) -> Iterator[Any]:
        while True:
            for (batch,) in self.loader:
                yield batch


def start(seed: int, *, lazy: bool = False, runtime: Any = None) -> Run:
    """A run from weights of its own: dropout, a schedule, batches in random order."""
    torch.manual_seed(seed)
    model = wrapped(mlp(dropout=0.3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.05, total_steps=20, cycle_momentum=False
    )
    data = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
    batches = DataLoader(TensorDataset(data), batch_size=8, shuffle=True)
    loader = spmd.ShardedLoader(batches, model.mesh)

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run = Run(model, optimizer, scheduler, loader, step, lazy)
    if lazy:
        spmd.prime_optimizer(optimizer)
        sync()
    else:
        run.step = spmd.compile_step(
            step, model=model, optimizer=optimizer, runtime=runtime
        )
    torch_xla_graph.set_seed(seed + 7)
    return run
