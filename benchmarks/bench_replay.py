"""Host time of a training step: torch_xla lazily, spmd's replay, and jax.jit.

    python benchmarks/bench_replay.py

Host time is what the call takes until Python goes on, with the devices idle before it:
the time for which a fast device would wait. All three train the same decoder with AdamW
and take turns; jax.jit is given the same number of arrays, donated too. The second
table is peak memory with and without donation, each in a process of its own.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++
# Dispatch is timed and not the program, so the compiler need not try hard.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from bench_decoder import (
    DEVICES,
    LR,
    Decoder,
    jax,
    jax_training,
    same_losses,
    torch_training,
)
from rich.console import Console
from rich.table import Table

import spmd

SMALL = {"vocab": 64, "dim": 64}  # so that the arrays count and not what is in them
LARGE = {"layers": 2, "vocab": 16384, "dim": 1024}  # 55 million parameters
CALLS = 4  # in a row of one kind; the first does not count
MIB = 2**20


def host_milliseconds(run: Callable[[], object], wait: Callable[[], object]) -> float:
    """Time a call that returns while the devices still work."""
    wait()
    start = time.perf_counter()
    run()
    taken = time.perf_counter() - start
    wait()
    return 1e3 * taken


def dispatch(layers: int, rounds: int) -> tuple[int, dict[str, list[float]]]:
    """Number of arrays, and host milliseconds of each call by name."""
    torch.manual_seed(0)
    model = Decoder(layers=layers, **SMALL)
    weights = {n: p.clone() for n, p in model.state_dict().items()}
    tokens = torch.randint(SMALL["vocab"], (DEVICES, 8))
    jax_step, state, jax_batch = jax_training(model, tokens, layers=layers)
    num_arrays = len(jax.tree.leaves(state)) + 2  # the batch, and the learning rate
    fn, wrapped, optimizer, batch = torch_training(model, tokens)
    step = spmd.compile_step(fn, model=wrapped, optimizer=optimizer)

    other = Decoder(layers=layers, **SMALL)
    other.load_state_dict(weights)
    lazy_fn, _, lazy_optimizer, _ = torch_training(other, tokens)
    spmd.prime_optimizer(lazy_optimizer)
    lazy_optimizer.param_groups[0]["lr"] = torch.tensor(LR).to("xla")
    losses: dict[str, Any] = {}

    def lazy() -> None:
        losses["lazy"] = lazy_fn(batch).detach()
        torch_xla.sync()

    def replay() -> None:
        losses["replay"] = step(batch)

    def jit() -> None:
        nonlocal state
        state, losses["jit"] = jax_step(state, jax_batch, LR)

    def wait_for_jax() -> None:
        jax.block_until_ready(state)

    calls = {
        "lazily": (lazy, xm.wait_device_ops),
        "replay": (replay, xm.wait_device_ops),
        "jax.jit": (jit, wait_for_jax),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds + 1):
        for name, (call, wait) in calls.items():
            taken = [host_milliseconds(call, wait) for _ in range(CALLS)]
            if i > 0:  # the first compile
                times[name] += taken[1:]  # the first cleans up after another kind
        found = [float(loss) for loss in losses.values()]
        same_losses(found, found[:1] * len(found))
    return num_arrays, times


def dispatch_table(layers: list[int], rounds: int) -> Table:
    table = Table(
        title=f"Host milliseconds of a step with AdamW over {DEVICES} CPU devices:\n"
        f"torch_xla lazily, spmd's replay, and jax.jit;\n"
        f"measured here over {rounds} rounds taking turns"
    )
    table.add_column("layers", justify="right")
    table.add_column("arrays", justify="right")
    table.add_column("call", no_wrap=True)
    for column in ("fastest", "median", "lazily\nto it", "it to\njax.jit"):
        table.add_column(column, justify="right", no_wrap=True)
    for num in layers:
        num_arrays, times = dispatch(num, rounds)
        lazy, base = times["lazily"], times["jax.jit"]
        for name, taken in times.items():
            fast, middle = min(taken), statistics.median(taken)
            table.add_row(
                str(num),
                str(num_arrays),
                name,
                f"{fast:.1f}",
                f"{middle:.1f}",
                f"{min(lazy) / fast:.1f} ({statistics.median(lazy) / middle:.1f})",
                f"{fast / min(base):.2f} ({middle / statistics.median(base):.2f})",
            )
        table.add_section()
    table.caption = "ratios of the fastest, and of the medians in brackets"
    return table


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory(donate: bool) -> None:
    """Print the largest resident size after a few steps; run in a fresh process."""
    torch.manual_seed(0)
    model = Decoder(**LARGE)
    fn, wrapped, optimizer, batch = torch_training(
        model, torch.randint(LARGE["vocab"], (DEVICES, 8))
    )
    step = spmd.compile_step(fn, model=wrapped, optimizer=optimizer, donate=donate)
    for _ in range(5):
        step(batch).item()
    print(peak_bytes())


def memory_table() -> Table:
    sizes = {}
    for name in ("donate", "keep"):
        done = subprocess.run(
            [sys.executable, __file__, "--memory", name],
            capture_output=True,
            text=True,
            check=True,
        )
        sizes[name] = int(done.stdout.split()[-1])
    num = sum(p.numel() for p in Decoder(**LARGE).parameters())
    state = 3 * 4 * num  # float32: parameters and two moments
    table = Table(
        title=f"Peak resident memory of a process that trains {num / 1e6:.0f} million\n"
        f"parameters, {state / MIB:.0f} MiB with AdamW's moments; measured here"
    )
    table.add_column("state")
    table.add_column("MiB", justify="right")
    table.add_column("ratio", justify="right")
    for name, label in (("keep", "donate=False"), ("donate", "donated")):
        ratio = sizes[name] / sizes["keep"]
        table.add_row(label, f"{sizes[name] / MIB:.0f}", f"{ratio:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what a step costs the host.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 16, 32])
    parser.add_argument("--memory", choices=["donate", "keep"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    spmd.init(cpu_devices=DEVICES)
    if args.memory:
        memory(donate=args.memory == "donate")
        return
    jax.config.update("jax_num_cpu_devices", DEVICES)
    console = Console()
    console.print(dispatch_table(args.layers, args.rounds))
    console.print(memory_table())


if __name__ == "__main__":
    main()
