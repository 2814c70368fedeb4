"""Seconds and memory from a traced step to its report, and against depth.

    python benchmarks/bench_inspect.py
    python benchmarks/bench_inspect.py --layers 4 16 --deep 8   # quicker

Steps of Llama 3 8B for two hosts of 8 H100 (FSDPv2, AdamW, 2048 tokens a device), each
part in a process of its own. Three questions: how long from trace to report; whether
reading and analysing takes time in proportion to the instructions, and memory in
proportion to the module's proto; and how long a large text dump takes.
"""

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.table import Table

TARGET = "h100:2x8"
DEVICES = 16
TEXT_BYTES = 50e6  # what the aim is about
MIB = 2**20


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def whole(layers: int, folder: Path) -> dict[str, float]:
    """Trace, compile and report in this process, with nothing cached."""
    import model_steps

    import profiling
    import spmd

    spmd.init(cpu_devices=1)
    mesh = spmd.Mesh({"fsdp": DEVICES})
    sizes = replace(model_steps.LLAMA["8b"], layers=layers)
    model = model_steps.fsdp("llama", model_steps.llama_model(sizes), mesh)
    start = time.perf_counter()
    program = model_steps.trace(
        "llama", model, mesh, rows=1, seq=sizes.seq, adam=True, name="step"
    )
    traced = time.perf_counter()
    try:
        schedule = profiling.compile(program, TARGET, cache_dir=folder / "cache")
    except profiling.CompileError as error:  # too big is no reason not to analyse it
        if error.compiled is None:
            raise
        schedule = profiling.analyse(error.compiled, program=program)
    compiled = time.perf_counter()
    schedule.save_html(folder / f"{layers}.html")
    done = time.perf_counter()
    (folder / f"{layers}.hlo").write_bytes(schedule.compiled.hlo)
    program.save(folder / f"{layers}.spmd")
    return {
        "trace_s": traced - start,
        "compile_s": compiled - traced,
        "report_s": done - compiled,
        "total_s": done - start,
    }


def analysis(layers: int, folder: Path) -> dict[str, float]:
    """Read a compiled module's proto and analyse it, with the program's names."""
    import profiling
    from spmd import Program

    program = Program.load(folder / f"{layers}.spmd")
    path = folder / f"{layers}.hlo"
    target = profiling.Target.parse(TARGET)
    profiling.analyse(profiling.load_module(_tiny(folder)))  # imports what it needs
    gc.collect()
    before = peak_bytes()
    start = time.perf_counter()
    module = profiling.load_module(path)
    schedule = profiling.analyse(module, program=program, target=target)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "instructions": sum(1 for _ in module.instructions()),
        "collectives": len(schedule.collectives),
        "proto_bytes": path.stat().st_size,
        "grown_bytes": peak_bytes() - before,
    }


def text(layers: int, folder: Path) -> dict[str, float]:
    """Read and analyse a dump in text form."""
    import profiling

    path = folder / f"{layers}.txt"
    start = time.perf_counter()
    dump = profiling.read(path)
    schedule = profiling.analyse(dump.largest, target=TARGET)
    return {
        "seconds": time.perf_counter() - start,
        "bytes": path.stat().st_size,
        "collectives": len(schedule.collectives),
    }


def write_text(layers: int, folder: Path) -> None:
    """The module as XLA dumps it."""
    from jaxlib import _hlo

    computation = _hlo.XlaComputation((folder / f"{layers}.hlo").read_bytes())
    options = _hlo.HloPrintOptions()
    options.print_metadata = options.print_backend_config = True
    text = computation.get_hlo_module().to_string(options)
    (folder / f"{layers}.txt").write_text(text)


def _tiny(folder: Path) -> Path:
    path = folder / "tiny.txt"
    path.write_text("HloModule m\n\nENTRY e {\n  ROOT p = f32[2] parameter(0)\n}\n")
    return path


def child(what: str, layers: int, folder: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", what, str(layers), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and weigh the inspection.")
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--deep", type=int, default=32, help="for trace to report")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        what, layers, folder = args.child
        part = {"whole": whole, "analysis": analysis, "text": text}[what]
        print(json.dumps(part(int(layers), Path(folder))))
        return
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {n: child("whole", n, folder) for n in {*args.layers, args.deep}}
        deep = found[args.deep]
        console.print(
            f"{args.deep} layers for {TARGET}, measured here: trace "
            f"{deep['trace_s']:.1f} s, compile and analyse {deep['compile_s']:.1f} s, "
            f"page {deep['report_s']:.1f} s; {deep['total_s']:.1f} s in all, "
            f"{deep['total_s'] / 60:.2f} of the aim of 60 s"
        )
        console.print(_depth_table(args.layers, folder))
        most = max(args.layers)
        write_text(most, folder)
        dump = child("text", most, folder)
        seconds = TEXT_BYTES / dump["bytes"] * dump["seconds"]
        console.print(
            f"text dump of {most} layers, {dump['bytes'] / 1e6:.1f} MB: read and "
            f"analysed in {dump['seconds']:.1f} s; so {TEXT_BYTES / 1e6:g} MB "
            f"take {seconds:.1f} s, {seconds / 10:.2f} of the aim of 10 s"
        )


def _depth_table(layers: list[int], folder: Path) -> Table:
    table = Table(title="Reading and analysing a proto; measured here")
    for column in ("layers", "instructions", "collectives", "seconds"):
        table.add_column(column, justify="right")
    for column in ("us each", "proto MiB", "memory to proto"):
        table.add_column(column, justify="right")
    for num in layers:
        row = child("analysis", num, folder)
        table.add_row(
            str(num),
            f"{row['instructions']:.0f}",
            f"{row['collectives']:.0f}",
            f"{row['seconds']:.2f}",
            f"{row['seconds'] / row['instructions'] * 1e6:.0f}",
            f"{row['proto_bytes'] / MIB:.1f}",
            f"{row['grown_bytes'] / row['proto_bytes']:.1f}",
        )
    return table


if __name__ == "__main__":
    main()
