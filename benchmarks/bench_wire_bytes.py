"""Bytes on the wire of a training step, beside the least that there can be.

    python benchmarks/bench_wire_bytes.py
    python benchmarks/bench_wire_bytes.py --models decoder --layers 2   # quicker

A decoder and Hugging Face's Llama 3 8B, of four layers, are compiled for two hosts of
8 H100 in each layout; nothing is run. What a device sends is held against the closed
form of `wire_minimum.py`. Where that is more than 5% above it, the collectives that
send most of it are named, with the reason; where that is not known, the exit status
is 1. Compiles are kept in the user's cache folder.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import model_steps
from model_steps import Sizes
from rich.console import Console
from rich.table import Table
from wire_minimum import PARTS, Work, minimum

import profiling
import spmd
from fsdpv2 import FSDPv2

TARGET = "h100:2x8"
ROWS = 16  # in all; a row for each device
LIMIT = 1.05
ITEM_BYTES = 2  # bfloat16
MB = 1e6
HOSTS = {"replica": 2}
TWICE = (
    "with the sequence split too, XLA's partitioner gathers a weight anew for the "
    "backward pass, as ZeRO-3 does, which it does not recognise as the value it has"
)


@dataclass(frozen=True)
class Layout:
    """How a model is split.

    Attributes:
        mesh: Over what.
        sequence: Between layers the sequence is split over tensor.
        again: Layers are computed again in the backward pass.
        known: Why more is sent than need be, where that is known.
    """

    mesh: spmd.Mesh
    sequence: bool = False
    again: bool = False
    known: str = ""


LAYOUTS = {
    "FSDP": Layout(spmd.Mesh({"fsdp": 16})),
    "FSDP, remat": Layout(spmd.Mesh({"fsdp": 16}), again=True),
    "replica x FSDP": Layout(spmd.Mesh.hybrid(ici={"fsdp": 8}, dcn=HOSTS)),
    "tensor": Layout(spmd.Mesh.hybrid(ici={"tensor": 8}, dcn=HOSTS)),
    "tensor + sequence": Layout(
        spmd.Mesh.hybrid(ici={"tensor": 8}, dcn=HOSTS), sequence=True
    ),
    "FSDP x tensor": Layout(spmd.Mesh.hybrid(ici={"tensor": 8}, dcn={"fsdp": 2})),
    "FSDP x tensor + sequence": Layout(
        spmd.Mesh.hybrid(ici={"tensor": 8}, dcn={"fsdp": 2}),
        sequence=True,
        known=TWICE,
    ),
    "replica x FSDP x tensor + sequence": Layout(
        spmd.Mesh.hybrid(ici={"fsdp": 2, "tensor": 4}, dcn=HOSTS),
        sequence=True,
        known=TWICE,
    ),
}
SIZES = {"decoder": model_steps.DECODER, "llama": model_steps.LLAMA["8b"]}


def program(kind: str, sizes: Sizes, layout: Layout, name: str) -> spmd.Program:
    """One SGD step; by FSDPv2, by a plan where tensors are split too, or by both."""
    mesh = layout.mesh
    make = {"decoder": model_steps.decoder_model, "llama": model_steps.llama_model}
    model = make[kind](sizes)
    if "tensor" in mesh.sizes:
        plan = model_steps.megatron_plan(kind, mesh, sequence=layout.sequence)
        spmd.shard_module(model, mesh, plan)
    if "fsdp" in mesh.sizes:
        remat = "full" if layout.again else "none"
        model = (
            FSDPv2(model, mesh)
            if "tensor" in mesh.sizes
            else model_steps.fsdp(kind, model, mesh, remat=remat)
        )
    rows = ROWS // mesh.axis_size(mesh.data_axes)
    return model_steps.trace(
        kind, model, mesh, rows=rows, seq=sizes.seq, adam=False, name=name
    )


def work(sizes: Sizes, mesh: spmd.Mesh) -> Work:
    """What a step of a model of these sizes works on."""
    kv = sizes.hidden * sizes.kv_heads // sizes.heads
    attention = 2 * sizes.hidden * (sizes.hidden + kv)
    table = sizes.vocab * sizes.hidden * ITEM_BYTES
    return Work(
        layers=sizes.layers,
        layer_bytes=(attention + 3 * sizes.hidden * sizes.ffn) * ITEM_BYTES,
        norm_bytes=(2 * sizes.layers + 1) * sizes.hidden * ITEM_BYTES,
        table_bytes=table,
        head_bytes=table,
        tokens=ROWS // mesh.axis_size(mesh.data_axes) * sizes.seq,
        token_bytes=sizes.hidden * ITEM_BYTES,
    )


def compiled(found: spmd.Program) -> profiling.Schedule:
    """Its schedule, also where it is too big for the target."""
    try:
        return profiling.compile(found, TARGET)
    except profiling.CompileError as error:
        if error.compiled is None:
            raise
        return profiling.analyse(error.compiled, program=found)


def by_part(collectives: Iterable[profiling.Collective]) -> Counter[str]:
    """Bytes that a device sends by what they are for, activations being the rest."""
    found = Counter[str]()
    for collective in collectives:
        for moved in collective.moved:
            part = moved.role if moved.role in PARTS else "activation"
            found[part] += moved.wire_bytes * collective.num_runs
    return found


def largest(collectives: Iterable[profiling.Collective], part: str) -> list[str]:
    """The three that send most for one part: kind, axes, tensor or module, phase."""
    found = Counter[str]()
    for collective in collectives:
        for moved in collective.moved:
            role = moved.role if moved.role in PARTS else "activation"
            if role == part:
                about = moved.tensor or moved.module
                text = (
                    f"{collective.kind} over {', '.join(collective.axes)} of {about} "
                    f"({moved.phase})"
                )
                found[text] += moved.wire_bytes * collective.num_runs
    return [f"{text}: {size / MB:.1f} MB" for text, size in found.most_common(3)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Wire bytes beside their minimum.")
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    spmd.init(cpu_devices=1)
    console = Console()
    table = Table(
        title=f"MB that one device sends in a step of {args.layers} layers, {ROWS} "
        f"rows; compiled for {TARGET}"
    )
    table.add_column("model")
    table.add_column("layout")
    for column in ("compiled", "minimum", "ratio", *PARTS):
        table.add_column(column, justify="right")
    over = []
    for kind in args.models:
        sizes = replace(SIZES[kind], layers=args.layers)
        for name in args.layouts:
            layout = LAYOUTS[name]
            schedule = compiled(program(kind, sizes, layout, f"{kind}, {name}"))
            least = minimum(
                work(sizes, layout.mesh),
                layout.mesh.sizes,
                sequence=layout.sequence,
                again=layout.again,
            )
            parts = by_part(schedule.collectives)
            whole = float(sum(least.values()))
            ratio = schedule.wire_bytes / whole
            table.add_row(
                kind,
                name,
                f"{schedule.wire_bytes / MB:.1f}",
                f"{whole / MB:.1f}",
                f"{ratio:.3f}",
                *(_ratio(parts[part], float(least[part])) for part in PARTS),
            )
            if ratio > LIMIT:
                part = max(PARTS, key=lambda p: parts[p] - least[p])
                over.append((kind, name, part, largest(schedule.collectives, part)))
    console.print(table)
    for kind, name, part, texts in over:
        console.print(f"{kind}, {name}: {part} above its minimum; {'; '.join(texts)}")
        console.print(f"  why: {LAYOUTS[name].known or 'not known'}")
    return 0 if all(LAYOUTS[name].known for _, name, *_ in over) else 1


def _ratio(size: float, least: float) -> str:
    return f"{size / least:.3f}" if least else ("-" if not size else f"{size / MB:.1f}")


if __name__ == "__main__":
    sys.exit(main())
