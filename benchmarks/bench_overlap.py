"""How much communication is hidden, by list of flags: others' lists beside ours.

    python benchmarks/bench_overlap.py                  # all; the first run is long
    python benchmarks/bench_overlap.py --cases fsdp-2x8 2d-2x8 --markdown

Each training step is compiled for devices that are not here, with: the defaults, no
asynchronous collectives, the list copied since 2024, MaxText's and JAX-Toolbox's as
they are published (`overlap_flags.yaml`; what the installed compiler refuses is dropped
and named), our preset, and what `spmd tune` finds. All times are estimates by spmd's
timeline from the compiled schedule; nothing is run. Compiles are kept in the user's
cache folder.

Exit status 1 if on a GPU ours is not faster than every published list and the defaults,
or on a TPU slower than the defaults.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import model_steps
import yaml
from rich.console import Console
from rich.table import Table

import flags
import profiling
import spmd
from profiling._cli.progress import Steps
from profiling._tuning.trial import SAME, Judge, Trial
from profiling._tuning.tune import setting, tune
from profiling._tuning.workload import workload

LISTS = Path(__file__).with_name("overlap_flags.yaml")
PRESETS = {"gpu": "gpu-overlap", "tpu": "tpu-overlap"}
MS, GIB = 1e-3, 2**30
decoder = model_steps.decoder


@dataclass(frozen=True)
class Case:
    """One step. `budget` is of tune: small where a compile takes long."""

    about: str
    target: str
    program: Callable[..., spmd.Program]
    mesh: spmd.Mesh
    budget: int = 14


CASES = {
    "fsdp-2x8": Case(
        "decoder of 4 layers, d=2048, 4x1024 tokens a device",
        "h100:2x8",
        functools.partial(decoder, layers=4, rows=4),
        spmd.Mesh({"fsdp": 16}),
    ),
    "fsdp-1x8": Case(
        "decoder of 4 layers, d=2048, 4x1024 tokens a device",
        "h100:1x8",
        functools.partial(decoder, layers=4, rows=4),
        spmd.Mesh({"fsdp": 8}),
    ),
    "2d-2x8": Case(
        "decoder of 4 layers, d=2048, 8x1024 tokens each 4 devices",
        "h100:2x8",
        functools.partial(decoder, layers=4, rows=8),
        spmd.Mesh({"fsdp": 4, "tensor": 4}),
    ),
    "llama-2x8": Case(
        "Llama 3 8B, 32 layers, 2048 tokens a device, AdamW",
        "h100:2x8",
        model_steps.llama,
        spmd.Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2}),
        budget=7,
    ),
    "fsdp-v5e": Case(
        "decoder of 1 layer, d=2048, 2x1024 tokens a device",
        "v5e:4x4",
        functools.partial(decoder, layers=1, rows=2),
        spmd.Mesh({"fsdp": 16}),
        budget=6,
    ),
}


@dataclass(frozen=True)
class Result:
    """One case.

    Attributes:
        name: Of the case.
        rows: Trial by list of flags, "ours" and "tuned" last.
        dropped: Flags that the compiler refuses, by list.
        chosen: What ours and tuned set.
        versions: Of what compiled.
    """

    name: str
    rows: dict[str, Trial]
    dropped: dict[str, list[str]]
    chosen: dict[str, str]
    versions: dict[str, str]

    @property
    def beaten_by(self) -> list[str]:
        """Lists that ours does not beat; on a TPU the defaults, if they are faster."""
        ours = self.rows["ours"]
        others = {k: v for k, v in self.rows.items() if k not in {"ours", "tuned"}}
        if CASES[self.name].target.startswith("v"):
            default = others["defaults"]
            return ["defaults"] if default.is_better(ours) else []
        return [k for k, v in others.items() if not ours.is_better(v)]


def accepted(line: str, backend: Any) -> tuple[dict[str, Any], list[str]]:
    """The flags of a line as options of a compile, and those that are refused."""
    found: dict[str, Any] = {}
    refused = []
    for word in line.split():
        name, equals, value = word.removeprefix("--").partition("=")
        one = {name: value if equals else "true"}
        try:
            found |= flags.options(one, backend=backend)
        except ValueError:
            refused.append(name)
    return found, refused


def run(name: str, budget: int | None, steps: Steps) -> Result:
    case = CASES[name]
    target = profiling.Target.parse(case.target)
    with steps.step(f"{name}: tracing"):
        program = case.program(case.mesh, name=name)
    figures = workload(program, target)
    sets: dict[str, Any] = {"defaults": {}}
    dropped = {}
    for entry in yaml.safe_load(LISTS.read_text(encoding="utf-8")):
        if entry["backend"] == target.kind:
            about = entry["about"]
            sets[about], dropped[about] = accepted(entry["line"], target.kind)
    sets["ours"] = flags.options(PRESETS[target.kind], workload=figures)
    judge = Judge(
        program,
        target,
        budget=len(sets),
        compile=lambda program, target, flags: profiling.compile(
            program, target, flags=flags
        ),
        watch=lambda what: steps.step(f"{name}: {what}"),
    )
    judge.try_all(sets.items())
    rows = {about: judge.known(chosen) for about, chosen in sets.items()}
    tuned = tune(
        program,
        target,
        budget=budget or case.budget,
        watch=lambda what: steps.step(f"{name}, tuning: {what}"),
    )
    rows["tuned"] = tuned.best
    chosen = {
        "ours": _listed(f"{k}={v}" for k, v in sets["ours"].items()),
        "tuned": _listed(setting(effect) for effect in tuned.effects),
    }
    versions = {k: v for k, v in judge.versions.items() if k != "compiler"}
    return Result(name, rows, dropped, chosen, versions)  # pyright: ignore


def _listed(words: Any) -> str:
    return ", ".join(words) or "nothing"


def cells(trial: Trial) -> Sequence[str]:
    """Step, exposed, hidden, share overlapped, memory."""
    if trial.step_s is None:
        return (trial.error.partition(":")[0], "-", "-", "-", "-")
    share = trial.overlapped_share
    memory = f"{(trial.memory_bytes or 0) / GIB:.2f}"
    return (
        f"{trial.step_s / MS:.2f}",
        f"{(trial.exposed_s or 0) / MS:.2f}",
        f"{(trial.hidden_s or 0) / MS:.2f}",
        "-" if share is None else f"{share:.0%}",
        f"{memory}{' (too much)' if trial.over_bytes else ''}",
    )


TITLES = ("step, ms", "exposed, ms", "hidden, ms", "overlapped", "memory, GiB")


def show(result: Result, console: Console) -> None:
    case = CASES[result.name]
    table = Table(
        title=f"{result.name}: {case.about}, {case.mesh} on {case.target} (estimate)",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("flags")
    for title in TITLES:
        table.add_column(title, justify="right")
    for about, trial in result.rows.items():
        style = "bold" if about in {"ours", "tuned"} else ""
        table.add_row(about, *cells(trial), style=style)
    console.print()
    console.print(table)
    for about, refused in result.dropped.items():
        if refused:
            console.print(f"  {about} without {_listed(refused)}: refused", style="dim")
    for about, text in result.chosen.items():
        console.print(f"  {about} sets {text}", highlight=False)
    lost = result.beaten_by
    if lost:
        console.print(f"  ours does not beat {_listed(lost)}", style="bold red")


def markdown(results: Sequence[Result]) -> str:
    lines = [f"| step | flags | {' | '.join(TITLES)} |", f"|---|---{'|---:' * 5}|"]
    for result in results:
        case = CASES[result.name]
        about = f"{case.about}; {case.mesh} on `{case.target}`"
        for name, trial in result.rows.items():
            shown = f"**{name}**" if name == "ours" else name
            lines.append(f"| {about} | {shown} | {' | '.join(cells(trial))} |")
            about = ""
    versions = results[0].versions | results[-1].versions
    listed = ", ".join(f"{k} {v}" for k, v in versions.items())
    return "\n".join([*lines, "", f"Estimates by spmd's timeline; {listed}."])


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare lists of flags by estimate.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--budget", type=int, help="for tune; default: small")
    parser.add_argument("--markdown", action="store_true", help="a table for a README")
    args = parser.parse_args()
    spmd.init(cpu_devices=1)  # traced here, compiled for the targets
    console = Console()
    results = []
    with Steps() as steps:
        for name in args.cases:
            results.append(run(name, args.budget, steps))
            if not args.markdown:
                show(results[-1], console)
    if args.markdown:
        print(markdown(results))
    else:
        console.print(
            f"\nTimes within {SAME:.1%} count as the same. {_versions(results)}"
        )
    return 1 if any(result.beaten_by for result in results) else 0


def _versions(results: Sequence[Result]) -> str:
    versions = results[0].versions | results[-1].versions
    return f"Compiled by {', '.join(f'{k} {v}' for k, v in versions.items())}."


if __name__ == "__main__":
    raise SystemExit(main())
