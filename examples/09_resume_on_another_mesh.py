"""Kill a training in the middle, and go on with it on another mesh.

    python examples/09_resume_on_another_mesh.py

The first process trains on eight devices in a row, saves every third step in the
background and is killed. The second goes on from the newest checkpoint on a mesh of 4 x
2, with the batches, the schedule and the moments where they were, and must have the
losses of a training that was never interrupted. At the end the weights are read without
any device, and exported for other tools. Checkpoints are left in runs/09_resume.
"""

import argparse
import math
import os
import signal
import subprocess
import sys

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no warnings of XLA's C++

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spmd
from fsdpv2 import FSDPv2
from spmd import checkpoint

FOLDER = "runs/09_resume"
STEPS = 12
EVERY = 3  # steps between checkpoints
KILLED = 8  # the step after which the first process dies
ROWS, BATCH = 64, 16  # 4 steps an epoch
BEFORE = {"fsdp": 8}
AFTER = {"fsdp": 4, "tensor": 2}


def network() -> nn.Sequential:
    # [batch, 32] to [batch, 256] and back
    return nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 32))


def train(axes: dict[str, int], *, folder: str | None, killed: int | None) -> None:
    """Train to the end, from the newest checkpoint if there is one."""
    mesh = spmd.Mesh(axes)
    torch.manual_seed(0)
    inner = spmd.to_device(network())
    if "tensor" in axes:  # split the wide dim over it, too; FSDPv2 keeps these specs
        spmd.mark_sharding(inner[0].weight, mesh, ("tensor", "fsdp"), name="0.weight")
        spmd.mark_sharding(inner[2].weight, mesh, ("fsdp", "tensor"), name="2.weight")
    model = FSDPv2(inner, mesh, min_shard_elements=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    data = torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(1))
    batches = DataLoader(TensorDataset(data), batch_size=BATCH, shuffle=True)
    loader = spmd.ShardedLoader(batches, mesh)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), x.sin())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
    manager = start = None
    kept = {"scheduler": schedule, "loader": loader}
    if folder is not None:
        manager = checkpoint.Manager(folder, keep=2, every=EVERY, asynchronous=True)
        start = manager.restore(model, optimizer, **kept)
    number = start.step if start is not None and start.step is not None else 0
    print(f"{axes} from step {number}", flush=True)
    for _ in range(loader.epoch, math.ceil(STEPS / len(loader))):
        for (x,) in loader:
            loss = step(x)
            schedule.step()
            number += 1
            print(f"  step: {number:2}  loss: {loss.item():.6f}", flush=True)
            if manager is not None:
                manager.save(number, model, optimizer, **kept)
            if number == killed:
                print("  killed", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    if manager is not None:
        manager.wait()


def read_without_devices(folder: str) -> None:
    """The same weights in plain PyTorch, and as safetensors."""
    manager = checkpoint.Manager(folder)
    plain = network()
    loaded = manager.restore(plain)
    assert loaded is not None
    total = sum(p.double().sum().item() for p in plain.parameters())
    print(f"step {loaded.step} on the CPU: the sum of all parameters is {total:.5f}")
    checkpoint.export_hf(f"{folder}/exported", plain)
    print(f"{folder}/exported: {', '.join(sorted(os.listdir(f'{folder}/exported')))}")


def main() -> int:
    """Start the processes, each running this file again."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=("whole", "first", "second", "read"))
    part = parser.parse_args().part
    if part == "read":
        read_without_devices(FOLDER)
    elif part is not None:
        spmd.init(cpu_devices=8)
        train(
            AFTER if part == "second" else BEFORE,
            folder=None if part == "whole" else FOLDER,
            killed=KILLED if part == "first" else None,
        )
    if part is not None:
        return 0
    if os.path.exists(FOLDER):
        parser.error(f"{FOLDER} is there already; delete it to begin anew")
    for part, wanted in (("whole", 0), ("first", -9), ("second", 0), ("read", 0)):
        done = subprocess.run([sys.executable, __file__, "--part", part])
        if done.returncode != wanted:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
