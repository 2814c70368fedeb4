"""Train the same thing lazily and by replay, and compare every number.

Lazy execution is the reference: torch_xla records the step anew each time. Both start
from the same weights, see the same batches and draw from the same random seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils import _pytree

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from spmd._torch_xla import graph as torch_xla_graph
from tests.on_device import sync

MESH = Mesh({"fsdp": 8})
ROWS = 8


@dataclass
class Training:
    """What is needed to run steps: `step` is called with each of `batches` in turn.

    `between` is called after every step, with its number: schedulers go there.
    """

    model: nn.Module
    optimizer: Optimizer | None
    step: Callable[..., Any]
    batches: Sequence[Any]
    between: Callable[[int], object] = lambda i: None
    extra: dict[str, torch.Tensor] = field(default_factory=dict)


def mlp(*, dropout: float = 0.0, norm: bool = False) -> nn.Sequential:
    """Two layers on the CPU, 16 features in and out."""
    return nn.Sequential(
        nn.Linear(16, 32),
        nn.BatchNorm1d(32) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(32, 16),
    )


def wrapped(model: nn.Module) -> FSDPv2:
    """Every parameter split over the eight devices."""
    return FSDPv2(model, MESH, min_shard_elements=1)


def batches(num: int = 4, *, rows: int = ROWS, features: int = 16) -> list[Any]:
    """Random features on the devices, the same each time."""
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(rows, features, generator=generator) for _ in range(num)]
    return [spmd.shard_batch(d, MESH) for d in data]


def squares(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """How far the model is from giving back its input."""
    return (model(batch) - batch).square().mean()


def simple(model: nn.Module, optimizer: Optimizer | None, **options: Any) -> Training:
    """The step everybody writes."""

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = squares(model, batch)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return Training(model, optimizer, step, batches(), **options)


def adamw(model: nn.Module, **options: Any) -> Optimizer:
    """AdamW with a rate large enough that every bit of it shows."""
    return torch.optim.AdamW(model.parameters(), **{"lr": 0.01, **options})


def compiled(training: Training, **options: Any) -> spmd.CompiledStep:
    """The training's step, compiled."""
    step = spmd.compile_step(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        extra=training.extra,
        **options,
    )
    assert isinstance(step, spmd.CompiledStep)
    return step


def values(tree: Any) -> list[Any]:
    """Tensors in nested containers, read on the host; anything else as it is."""
    return [
        leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf
        for leaf in _pytree.tree_leaves(tree)
    ]


def state_of(training: Training) -> dict[str, torch.Tensor]:
    """Everything a training keeps, by name, on the host."""
    found = {n: p for n, p in training.model.state_dict().items()}
    found |= {f"extra.{n}": t for n, t in training.extra.items()}
    for name, parameter in training.model.named_parameters():
        if parameter.grad is not None:
            found[f"grad.{name}"] = parameter.grad
    if training.optimizer is not None:
        for i, table in enumerate(training.optimizer.state.values()):
            for key, value in table.items():
                if isinstance(value, torch.Tensor):
                    found[f"state.{i}.{key}"] = value
    return {name: t.detach().cpu().clone() for name, t in found.items()}


def run(
    training: Training, step: Callable[..., Any], num: int, *, first: int = 0
) -> list[list[Any]]:
    """Results of `num` steps, read on the host at the end."""
    results = []
    for i in range(first, first + num):
        results.append(step(training.batches[i % len(training.batches)]))
        training.between(i)
    return [values(r) for r in results]


def run_lazily(
    training: Training, num: int, *, device_lr: bool = True, **options: Any
) -> list[list[Any]]:
    """Results of steps that torch_xla records anew each time.

    `device_lr` has torch compute with the rate in float32, as a compiled step does: it
    multiplies a Python number in double precision.
    """
    groups = [] if training.optimizer is None else training.optimizer.param_groups

    def step(batch: Any) -> Any:
        given = [group["lr"] for group in groups]
        for group in groups if device_lr else ():
            if not isinstance(group["lr"], torch.Tensor):
                group["lr"] = torch.tensor(float(group["lr"])).to("xla")
        with spmd.sharding_preserving():  # as a compiled step does by itself
            result = training.step(batch)
        for group, rate in zip(groups, given, strict=True):
            group["lr"] = rate
        sync()
        return result

    return run(training, step, num, **options)


def check_equal(got: Any, wanted: Any, where: str = "") -> None:
    """Not one bit may differ."""
    assert type(got) is type(wanted), where
    if isinstance(got, dict):
        assert got.keys() == wanted.keys(), where
        for key in got:
            check_equal(got[key], wanted[key], f"{where}.{key}")
    elif isinstance(got, list):
        assert len(got) == len(wanted), where
        for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
            check_equal(a, b, f"{where}[{i}]")
    elif isinstance(got, torch.Tensor):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape, where
        gap = (got.double() - wanted.double()).abs().max() if got.numel() else 0.0
        assert torch.equal(got, wanted), f"{where} differs by {gap}"
    else:
        assert got == wanted, where


def check_exact(
    make: Callable[[], Training],
    *,
    num: int = 20,
    device_lr: bool = True,
    num_graphs: int = 1,
) -> Training:
    """Train lazily and by replay and compare results of each step and final state.

    `device_lr=False` leaves the learning rate of the lazy run a Python number.
    """
    histories, states = [], []
    for replay in (False, True):
        torch.manual_seed(0)
        training = make()
        if replay:
            step = compiled(training)
            torch_xla_graph.set_seed(7)
            histories.append(run(training, step, num))
            assert step.num_graphs == num_graphs
        else:
            if training.optimizer is not None:
                spmd.prime_optimizer(training.optimizer)
            sync()  # or the first graph has zeros for moments, and rounds otherwise
            torch_xla_graph.set_seed(7)
            histories.append(run_lazily(training, num, device_lr=device_lr))
        states.append(state_of(training))
    check_equal(histories[1], histories[0], "step")
    check_equal(states[1], states[0], "state")
    assert len({str(r) for r in histories[0]}) > 1  # something was trained at all
    return training
