"""Steps to capture, and what a capture holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import torch

import spmd

NUM_ROWS = 16


def compiled_step(runtime: str) -> Any:
    """A small training step on 8 devices that takes a batch."""
    mesh = spmd.Mesh({"fsdp": 8})
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 32))
    model = spmd.to_device(model)
    for parameter in model.parameters():
        spec = ("fsdp", *[None] * (parameter.ndim - 1))
        spmd.mark_sharding(parameter, mesh, spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return spmd.compile_step(
        train_step, model=model, optimizer=optimizer, runtime=runtime
    )


def batches(count: int, runtime: str = "torch_xla") -> Any:
    """So many batches for `compiled_step`, from a loader if that sends them."""
    rows = [torch.ones(NUM_ROWS, 32) for _ in range(count)]
    if runtime == "jax":
        return rows
    return spmd.ShardedLoader(rows, spmd.Mesh({"fsdp": 8}), "fsdp")


def runtime_of(step: Any) -> str:
    """What a compiled step runs on."""
    return "jax" if hasattr(step, "pull") else "torch_xla"


def loop(step: Any, count: int) -> list[float]:
    """The losses of so many steps, each read before the next."""
    return [float(step(x).item()) for x in batches(count, runtime_of(step))]


def files(folder: Path) -> list[str]:
    """Names of the profiles in a folder, without the host's."""
    return sorted(p.name.partition(".")[2] for p in folder.glob("*.xplane.pb"))


def profile(folder: Path) -> Any:
    """The only profile in a folder, as jax reads it."""
    (path,) = folder.glob("*.xplane.pb")
    return jax.profiler.ProfileData.from_file(str(path))


def events(found: Any) -> list[Any]:
    """All events of the host, in the order in which they began."""
    planes = [plane for plane in found.planes if plane.name == "/host:CPU"]
    every = [e for plane in planes for line in plane.lines for e in line.events]
    return sorted(every, key=lambda event: event.start_ns)


def names(found: Any) -> Counter[str]:
    """How often events of the run's own host side occur."""
    kinds = (event.name for event in events(found))
    return Counter(n for n in kinds if n.startswith("spmd/") or n == "train")


def operations(found: Any) -> Counter[str]:
    """How often each operation of a device ran, ends left out."""
    return Counter(
        event.name
        for event in events(found)
        if not event.name.startswith("end: ") and "hlo_op" in dict(event.stats)
    )
