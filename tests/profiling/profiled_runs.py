"""Steps that really ran on 8 CPU devices, each captured once."""

from __future__ import annotations

import functools
import tempfile
import time
from pathlib import Path

STEPS = 4
_KEPT = tempfile.TemporaryDirectory(prefix="profiles")
FOLDER = Path(_KEPT.name)
"""Goes when the interpreter ends."""
WIDTH, LAYERS, ROWS = 64, 3, 64


@functools.cache
def jax_run() -> Path:
    """Layers whose weights are split over `fsdp`, trained by jax."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((8,), ("fsdp",), devices=jax.devices("cpu"))
    split = NamedSharding(mesh, PartitionSpec("fsdp"))
    weights = [jax.device_put(jnp.ones((WIDTH, WIDTH)), split) for _ in range(LAYERS)]
    x = jax.device_put(jnp.ones((ROWS, WIDTH)), split)

    def loss(weights, x):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return (x * x).mean()

    @jax.jit
    def train_step(weights, x):
        gradients = jax.grad(loss)(weights, x)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    weights = train_step(weights, x)
    jax.block_until_ready(weights)
    with jax.profiler.trace(FOLDER / "jax"):
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                weights = train_step(weights, x)
        jax.block_until_ready(weights)
    return FOLDER / "jax"


@functools.cache
def torch_xla_run() -> Path:
    """The same by torch_xla, as a step that is compiled once and replayed."""
    import torch
    import torch_xla.debug.profiler as xp
    from torch import nn

    import spmd
    from fsdpv2 import FSDPv2

    spmd.init(cpu_devices=8)
    mesh = spmd.Mesh({"fsdp": 8})
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    network = nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())])
    model = FSDPv2(network, mesh, min_shard_elements=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
    batch = spmd.shard_batch({"x": torch.ones(ROWS, WIDTH)}, mesh)

    def wait() -> None:
        """Until all devices are done: each has a part of each weight."""
        for weight in model.parameters():
            weight.cpu()
        time.sleep(0.2)

    for _ in range(3):
        step(batch)
    wait()
    xp.start_trace(str(FOLDER / "torch_xla"))
    for number in range(STEPS):
        with xp.StepTrace("train", step_num=number):
            step(batch)
    wait()
    xp.stop_trace()
    return FOLDER / "torch_xla"
