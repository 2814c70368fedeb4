"""Host time of a training step: torch_xla lazily, spmd's replay, and jax.jit.

    python benchmarks/bench_replay.py

Host time is what the call takes until Python goes on, with the devices idle before it:
the time for which a fast device would wait. All train the same decoder with AdamW, each
in a process of its own, and take turns. Batch and learning rate are on the devices
before. The replay's graph takes numbers of the code as further inputs, as lazy
execution does, with which it agrees to the last bit. "jax.jit" is given the same
parameters, optimizer state (donated too), batch and rate as arrays, and as many further
numbers, which its program reads, as the replay has inputs beyond those: both
executables take the same number of arrays. "fewer" is jax.jit without these numbers.
The second table is peak memory with and without donation.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++
# Dispatch is timed and not the program, so the compiler need not try hard.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

import numpy as np
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
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table

import spmd
from spmd._torch_xla import graph as torch_xla_graph

SMALL = {"vocab": 64, "dim": 64}  # so that the arrays count and not what is in them
LARGE = {"layers": 2, "vocab": 16384, "dim": 1024}  # 55 million parameters
JAX, JAX_FEWER = "jax.jit", "fewer"
KINDS = ("lazily", "replay", JAX, JAX_FEWER)  # the replay's number is jax.jit's
CALLS = 5  # in a row of one kind; the first does not count
MIB = 2**20


def host_milliseconds(run: Callable[[], object], wait: Callable[[], object]) -> float:
    """Time a call that returns while the devices still work."""
    wait()
    start = time.perf_counter()
    run()
    taken = time.perf_counter() - start
    wait()
    return 1e3 * taken


Training = tuple[Callable[[], object], Callable[[], object], Callable[[], int | None]]


def training(kind: str, layers: int, num_arrays: int | None = None) -> Training:
    """A step of one kind, what waits for its devices, and its number of arrays."""
    torch.manual_seed(0)
    model = Decoder(layers=layers, **SMALL)
    tokens = torch.randint(SMALL["vocab"], (DEVICES, 8))
    if kind in (JAX, JAX_FEWER):
        return jax_step_of(model, tokens, layers, num_arrays if kind == JAX else None)
    fn, wrapped, optimizer, batch = torch_training(model, tokens)
    if kind == "replay":
        counts: list[int] = []
        step = spmd.compile_step(fn, model=wrapped, optimizer=optimizer)

        def replay() -> object:
            if counts:
                return step(batch)
            with counting_inputs(counts):  # the first call, which compiles
                return step(batch)

        return replay, xm.wait_device_ops, lambda: counts[-1]
    spmd.prime_optimizer(optimizer)
    optimizer.param_groups[0]["lr"] = torch.tensor(LR).to("xla")

    def lazy() -> object:
        loss = fn(batch).detach()
        torch_xla.sync()
        return loss

    return lazy, xm.wait_device_ops, lambda: None


@contextmanager
def counting_inputs(counts: list[int]) -> Iterator[None]:
    """Note how many arrays each compiled graph is given."""
    run = torch_xla_graph.run_graph

    def counted(key: bytes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        counts.append(len(inputs))
        return run(key, inputs)

    torch_xla_graph.run_graph = counted
    try:
        yield
    finally:
        torch_xla_graph.run_graph = run


def jax_step_of(
    model: torch.nn.Module, tokens: torch.Tensor, layers: int, num_arrays: int | None
) -> Training:
    """The step in jax, with further numbers if there are to be more arrays."""
    compiled: Any
    compiled, state, batch = jax_training(model, tokens, layers=layers)
    # There already, as the replay's are from its first call on.
    rows: Any = batch.sharding
    whole = NamedSharding(rows.mesh, PartitionSpec())
    rate = jax.device_put(np.float32(LR), whole)
    own = len(jax.tree.leaves(state)) + 2  # the batch, and the learning rate
    num_more = 0 if num_arrays is None else num_arrays - own
    assert num_more >= 0, f"the replay takes {num_arrays} arrays, jax.jit {own}"
    more = [jax.device_put(np.float32(1), whole) for _ in range(num_more)]
    taken = num_inputs(compiled.lower(state, batch, rate, *more).compile().as_text())
    assert taken == own + num_more, f"jax.jit dropped arrays: {taken} are left"

    def jit() -> object:
        nonlocal state
        state, loss = compiled(state, batch, rate, *more)
        return loss

    return jit, lambda: jax.block_until_ready(state), lambda: taken


def num_inputs(hlo: str) -> int:
    """How many arrays the entry of a compiled program takes."""
    entry = hlo[hlo.index("\nENTRY ") :]
    return len(re.findall(r" parameter\(\d+\)", entry))


def work(kind: str, layers: int) -> None:
    """Run `CALLS` steps for each line of the standard input; a line of JSON each."""
    # The first line says how many arrays a step is to take, where that is known.
    call, wait, taken = training(kind, layers, json.loads(sys.stdin.readline()))
    losses: list[Any] = []

    def step() -> None:
        losses.append(call())

    for _ in sys.stdin:
        losses.clear()
        times = [host_milliseconds(step, wait) for _ in range(CALLS)]
        found = [float(loss) for loss in losses]
        answer = {"arrays": taken(), "times": times, "losses": found}
        print(json.dumps(answer), flush=True)


def dispatch(
    layers: int, rounds: int
) -> tuple[dict[str, int | None], dict[str, list[float]]]:
    """Number of arrays, and host milliseconds of each call, by kind.

    Each kind has a process of its own, as users run it: in a shared one the recording
    of the lazy steps leaves holes in the heap, which slow what runs next.
    """
    workers = {
        kind: subprocess.Popen(
            [sys.executable, __file__, "--work", kind, "--layers", str(layers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in KINDS
    }
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    num_arrays: dict[str, int | None] = {}
    for i in range(rounds + 1):
        losses = []
        for kind, worker in workers.items():
            assert worker.stdin is not None and worker.stdout is not None
            if i == 0:
                print(json.dumps(num_arrays.get("replay")), file=worker.stdin)
            print(file=worker.stdin, flush=True)
            answer = json.loads(worker.stdout.readline())
            num_arrays[kind] = answer["arrays"]
            losses.append(answer["losses"])
            if i > 0:  # the first compiles
                times[kind] += answer["times"][1:]  # the first warms up again
        for found in losses:
            same_losses(found, losses[0])
    for worker in workers.values():
        worker.communicate()
    assert num_arrays["replay"] == num_arrays[JAX], num_arrays
    return num_arrays, times


def dispatch_table(layers: list[int], rounds: int) -> Table:
    table = Table(
        title=f"Host milliseconds of a step with AdamW over {DEVICES} CPU devices:\n"
        f"torch_xla lazily, spmd's replay, and jax.jit with as many arrays and fewer;\n"
        f"measured here over {rounds} rounds taking turns"
    )
    table.add_column("layers", justify="right")
    table.add_column("arrays", justify="right")
    table.add_column("call", no_wrap=True)
    for column in ("fastest", "median", "lazily\nto it", "it to\njax.jit"):
        table.add_column(column, justify="right", no_wrap=True)
    for num in layers:
        num_arrays, times = dispatch(num, rounds)
        lazy, base = times["lazily"], times[JAX]
        for name, taken in times.items():
            fast, middle = min(taken), statistics.median(taken)
            table.add_row(
                str(num),
                str(num_arrays[name] or ""),
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
    parser.add_argument("--work", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    spmd.init(cpu_devices=DEVICES)
    if args.memory:
        memory(donate=args.memory == "donate")
        return
    jax.config.update("jax_num_cpu_devices", DEVICES)
    if args.work:
        work(args.work, args.layers[0])
        return
    console = Console()
    console.print(dispatch_table(args.layers, args.rounds))
    console.print(memory_table())


if __name__ == "__main__":
    main()
