"""Run the same training step on torch_xla, on jax, and on jax in two processes.

    python examples/04_run_on_jax.py                 # torch_xla, then jax: same losses
    python examples/04_run_on_jax.py --processes 2   # jax in two processes

A step is traced by torch_xla and executed by jax, which has GPUs and several hosts. The
script is the same for both runtimes; with `spmd.init(runtime="jax")` the state lives in
jax's arrays, and `state_dict()` brings it back. On a machine with GPUs leave
`cpu_devices` out. Two processes stand for two hosts: each passes its own rows, and the
parameters are split inside a host and copied between the two.
"""

import argparse
import os
import socket
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no warnings of XLA's C++

import torch
import torch.nn.functional as F
from torch import nn

import spmd
from fsdpv2 import FSDPv2

DEVICES = 8  # virtual CPU devices in all
BATCH = 32  # rows a step, over all processes
STEPS = 5


def train(process: int) -> list[float]:
    """Train a small network; returns the loss of each step."""
    mesh = spmd.Mesh({"replica": 2, "fsdp": -1})  # over the devices of all processes
    torch.manual_seed(0)  # the same initial values in every process
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    model = FSDPv2(network, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def train_step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
    part, parts = spmd.data_rank(mesh)  # which rows this process loads
    random = torch.Generator().manual_seed(1)
    losses = []
    for number in range(1, STEPS + 1):
        x = torch.randn(BATCH, 64, generator=random)  # [batch, features]
        mine = x[part * BATCH // parts : (part + 1) * BATCH // parts]
        loss = step(spmd.shard_batch({"x": mine, "y": mine.sin()}, mesh))
        schedule.step()
        losses.append(loss.item())
        print(f"  process {process}  step: {number}  loss: {losses[-1]:.6f}")
    total = sum(v.double().sum().item() for v in model.state_dict().values())
    print(f"  process {process}  sum of all parameters: {total:.5f}")
    return losses


def run_process(runtime: str, processes: int, process: int, port: int) -> None:
    """What one process does."""
    if processes > 1:
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", DEVICES // processes)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", processes, process)
    spmd.init(runtime=runtime, cpu_devices=DEVICES // processes)
    print(f"{runtime}, {processes} process(es):")
    train(process)


def main() -> int:
    """Start the processes, each running this file again."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        runtime, process, port = options.child
        run_process(runtime, options.processes, int(process), int(port))
        return 0
    with socket.socket() as probe:  # a port that is free
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    runs = [("jax", str(i)) for i in range(options.processes)]
    if options.processes == 1:
        runs.insert(0, ("torch_xla", "0"))
    again = [sys.executable, __file__, "--processes", str(options.processes)]
    children = []
    for run in runs:
        child = subprocess.Popen([*again, "--child", *run, port])
        if options.processes == 1:
            child.wait()  # one runtime after the other
        children.append(child)
    return max(child.wait() for child in children)


if __name__ == "__main__":
    sys.exit(main())
