"""What a checkpoint costs: time that training waits, and memory of the host.

    python benchmarks/bench_checkpoint.py

The first table is how long `save` blocks the step, synchronously and in the background,
and how long the whole save takes; the two take turns. The second is the largest
resident size while a model is loaded into shards, above those shards, counted in
largest tensors; each in a process of its own. The devices of this machine are part of
the same memory, so small requests are taken from the system one by one
(MALLOC_MMAP_THRESHOLD_): otherwise what malloc keeps for later is counted too.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
import torch_xla.core.xla_model as xm
from rich.console import Console
from rich.table import Table
from torch import nn

import spmd
from spmd import checkpoint

DEVICES = 8
LAYERS = 4
DIM = 2048  # 16 MiB a weight; 192 MiB with AdamW's moments
LARGE = 4096  # 64 MiB a weight, for the second table
MIB = 2**20
MESHES = {
    "(8,), rows": ({"a": 8}, ("a", None)),
    "(8,), columns": ({"a": 8}, (None, "a")),
    "(4, 2), both": ({"a": 4, "b": 2}, ("a", "b")),
}


def network(dim: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(dim, dim, bias=False) for _ in range(LAYERS)))


def split(model: nn.Module, axes: dict[str, int], spec: tuple[str | None, ...]) -> None:
    mesh = spmd.Mesh(axes)
    for name, parameter in model.named_parameters():
        spmd.mark_sharding(parameter, mesh, spec, name=name)


def blocked(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds that a save blocks, and that it takes, by kind."""
    model = spmd.to_device(network(DIM))
    split(model, {"a": DEVICES}, ("a", None))
    optimizer = torch.optim.AdamW(model.parameters())
    spmd.prime_optimizer(optimizer)
    xm.wait_device_ops()
    times: dict[str, list[tuple[float, float]]] = {"synchronous": [], "background": []}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for i in range(rounds + 1):
            for kind, taken in times.items():
                start = time.perf_counter()
                saving = checkpoint.save(
                    f"{folder}/{kind}{i}",
                    model,
                    optimizer,
                    asynchronous=kind == "background",
                )
                back = time.perf_counter() - start
                saving.wait()
                if i > 0:
                    taken.append((back, time.perf_counter() - start))
    return times


def blocked_table(rounds: int) -> Table:
    times = blocked(rounds)
    size = 3 * LAYERS * DIM * DIM * 4 / MIB
    table = Table(
        title=f"Seconds for which a save of {size:.0f} MiB blocks training on\n"
        f"{DEVICES} CPU devices; measured here over {rounds} rounds taking turns"
    )
    table.add_column("save", no_wrap=True)
    for column in (
        "blocks\nmedian",
        "fastest",
        "until\ncomplete",
        "blocked, to\nsynchronous",
    ):
        table.add_column(column, justify="right")
    base = statistics.median(back for back, _ in times["synchronous"])
    for kind, taken in times.items():
        middle = statistics.median(back for back, _ in taken)
        table.add_row(
            kind,
            f"{middle:.3f}",
            f"{min(back for back, _ in taken):.3f}",
            f"{statistics.median(whole for _, whole in taken):.3f}",
            f"{middle / base:.2f}",
        )
    return table


def resident(key: str) -> int:
    with open("/proc/self/status") as lines:
        return (
            next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024
        )


def memory(path: str, mesh: str) -> None:
    """Print the peak above the shards that are there at the end; in a fresh process."""
    with spmd.meta_parameters():
        model = network(LARGE)
    split(model, *MESHES[mesh])
    checkpoint.load(f"{path}/warm", nn.Linear(4, 4))  # what Python imports on the way
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = resident("VmRSS")
    checkpoint.load(f"{path}/large", model)
    xm.wait_device_ops()
    shards = sum(p.numel() * p.element_size() for p in model.parameters())
    print(resident("VmHWM") - before - shards)


def memory_table() -> Table:
    size = LARGE * LARGE * 4
    table = Table(
        title=f"Peak memory of a host that loads {LAYERS} tensors of\n"
        f"{size / MIB:.0f} MiB, which one device saved; measured here"
    )
    table.add_column("onto", no_wrap=True)
    for column in ("peak above the\nshards, MiB", "in largest\ntensors"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        checkpoint.save(f"{folder}/large", network(LARGE))
        checkpoint.save(f"{folder}/warm", nn.Linear(4, 4))
        for mesh in MESHES:
            done = subprocess.run(
                [sys.executable, __file__, "--memory", folder, mesh],
                env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 * 1024)},
                capture_output=True,
                text=True,
                check=True,
            )
            above = int(done.stdout.split()[-1])
            table.add_row(mesh, f"{above / MIB:.0f}", f"{above / size:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and weigh checkpoints.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    spmd.init(cpu_devices=DEVICES)
    if args.memory:
        memory(*args.memory)
        return
    console = Console()
    console.print(blocked_table(args.rounds))
    console.print(memory_table())


if __name__ == "__main__":
    main()
