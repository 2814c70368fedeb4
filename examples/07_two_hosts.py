"""Llama 2 on two hosts of 8 H100: why it is slow, and two layouts that are not.

    python examples/07_two_hosts.py               # 4 of its layers, under a minute
    python examples/07_two_hosts.py --layers 32   # all of Llama 2 7B, two minutes

The case is github.com/pytorch/xla/issues/6778: fast on one machine, slow on two. Each
parameter was split on its first dim over all devices. The owner expected weights to be
gathered inside a machine; the partitioner gathered activations over the network. That
step is compiled here for `h100:2x8`, which nobody needs to have, and explained. Beside
it stand two others: weights are split inside each host (FSDP), or layers are (tensor
parallelism, which is what the owner had in mind), and the hosts split the rows.
"""

import argparse
import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

import profiling
import spmd
from fsdpv2 import FSDPv2
from profiling import Schedule

TARGET = "h100:2x8"
ROWS, SEQ = 16, 2048  # of a batch: as many rows as devices
SMALL = 64 * 2**20  # bytes of a step that have no line of their own


Rows = str | tuple[str, ...] | None  # axes that split the rows of a batch
Layout = tuple[nn.Module, spmd.Mesh, Rows]


def as_it_was(model: nn.Module) -> Layout:
    """Every weight over 16 devices; nothing is said of the batch, so that is whole."""
    mesh = spmd.Mesh({"fsdp": 16})
    plan = spmd.Plan({"**.*norm.weight": ("fsdp",), "**.weight": ("fsdp", None)})
    return spmd.shard_module(model, mesh, plan), mesh, None


def fsdp_inside(model: nn.Module) -> Layout:
    """Only axes of `dcn` cross hosts, and each host has a copy of the weights."""
    mesh = spmd.Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2})
    model = FSDPv2(model, mesh, auto_wrap_policy={"LlamaDecoderLayer"})
    return model, mesh, ("replica", "fsdp")


def tensor_inside(model: nn.Module) -> Layout:
    """Heads and hidden features are split inside a host, rows between the two."""
    mesh = spmd.Mesh.hybrid(ici={"tensor": 8}, dcn={"replica": 2})
    plan = spmd.auto_plan(model, mesh)
    return spmd.shard_module(model, mesh, plan), mesh, "replica"


def trace(layers: int, split: Callable[[nn.Module], Layout]) -> spmd.Program:
    """One AdamW step of Llama 2, whose defaults `LlamaConfig` has, without data."""
    config = LlamaConfig(num_hidden_layers=layers, use_cache=False)
    with spmd.meta_parameters():  # no memory, whatever the size
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model, mesh, rows = split(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def train_step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = torch.empty(ROWS, SEQ, dtype=torch.int64, device="meta")
    batch = {"input_ids": ids, "labels": ids}
    given = {"model": model, "optimizer": optimizer, "mesh": mesh}
    return spmd.trace(train_step, batch, batch_spec=(rows, None), **given)


def explain(program: spmd.Program, schedule: Schedule) -> None:
    """Print what is wrong with a step, and why."""
    for found in profiling.explain(program, schedule):
        if found.is_problem:
            print(textwrap.indent(textwrap.fill(f"problem: {found.what}", 78), "  "))
            fix = "" if found.fix is None else f"fix: {found.fix.code}"
            for line in filter(None, (*found.why, fix)):
                print(textwrap.indent(textwrap.fill(line, 74), "    "))


def sent(schedule: Schedule) -> Counter[tuple[str, str]]:
    """Bytes that a device sends in a step: by link, and by role and axes."""
    totals = Counter[tuple[str, str]]()
    for c in schedule.collectives:
        over = ", ".join(c.axes) or f"{c.group_size} devices"
        for moved in c.moved:  # a collective may carry several arrays
            totals[c.link, f"{moved.role} over {over}"] += moved.wire_bytes * c.num_runs
    return totals


def compare(schedules: dict[str, Schedule]) -> None:
    """Print the figures of one device in one step side by side."""
    parts = [sent(schedule) for schedule in schedules.values()]

    def row(text: str, values: Iterable[float], form: str = "{:.2f} GiB") -> None:
        cells = (form.format(value) if value else "-" for value in values)
        print(f"{text:36}" + "".join(f"{cell:>14}" for cell in cells))

    print("\n" + " " * 36 + "".join(f"{name:>14}" for name in schedules))
    for link, where in (("ib", "between hosts"), ("nvlink", "inside a host")):
        keys = dict.fromkeys(key for part in parts for key in part if key[0] == link)
        row(f"sent {where}", [sum(p[k] for k in keys) / 2**30 for p in parts])
        for key in keys:
            if max(part[key] for part in parts) >= SMALL:
                row(f"  {key[1]}", [part[key] / 2**30 for part in parts])
    found = schedules.values()
    row("memory", [s.memory.total_bytes / 2**30 for s in found])
    for text, times in (("step", "step_s"), ("compute waits", "exposed_s")):
        row(f"{text} (estimate)", [getattr(s, times) * 1e3 for s in found], "{:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description="Find why Llama is slow on two hosts.")
    parser.add_argument("--layers", type=int, default=4, help="32 for Llama 2 7B")
    parser.add_argument("--out", type=Path, default=Path("out"), help="a folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    spmd.init(cpu_devices=1)  # traced here, compiled for the target
    schedules = {}
    for split in (as_it_was, fsdp_inside, tensor_inside):
        name = split.__name__.replace("_", " ")
        program = trace(args.layers, split)
        path = program.save(args.out / f"07_{split.__name__}.spmd")
        schedules[name] = profiling.compile(program, TARGET)
        report = schedules[name].save_html(path.with_suffix(".html"))
        print(f"{name}: {program.mesh}, report {report}", flush=True)
        if split is as_it_was:
            explain(program, schedules[name])
    compare(schedules)
    jaxlib = ", ".join({s.versions["jaxlib"] for s in schedules.values()})
    print(f"\nBytes: compiled for {TARGET} by jaxlib {jaxlib}. Times: estimates.")
    print(f"more: spmd explain {args.out}/07_as_it_was.spmd --target {TARGET}")


if __name__ == "__main__":
    main()
