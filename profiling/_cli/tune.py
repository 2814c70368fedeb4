"""``spmd tune``: search flags for a program by compiling it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from flags import NotInstalledError, Preset, write
from profiling._cli.progress import Steps
from profiling._cli.values import preset_from, targets_from
from profiling._targets.target import Target
from profiling._tuning.tune import BUDGET, LEAST_BUDGET, Tuned, tune

if TYPE_CHECKING:
    from spmd._program.program import Program

_EPILOG = """\b
Example:
  spmd tune step.spmd --target h100:2x8 --out mine.yaml
  spmd inspect step.spmd --target h100:2x8 --preset mine.yaml
"""


@click.command("tune", epilog=_EPILOG)
@click.argument("path", type=click.Path(path_type=Path), metavar="PROGRAM")
@click.option("--target", "text", required=True, help="GPUs or TPUs, as h100:2x8.")
@click.option(
    "--target-file",
    type=click.Path(path_type=Path),
    help="YAML of further chips, in the form of profiling/targets.yaml.",
)
@click.option(
    "--budget",
    type=click.IntRange(min=LEAST_BUDGET),
    default=BUDGET,
    show_default=True,
    help="Sets of flags to compile at most.",
)
@click.option(
    "--preset",
    "presets",
    multiple=True,
    metavar="NAME|FILE",
    help="Start from this one too; may be repeated.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Preset to write; default: after the program and target, in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Write data instead of text.")
def tune_command(
    path: Path,
    text: str,
    target_file: Path | None,
    budget: int,
    presets: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Find the flags with which a step is fastest, by estimate.

    PROGRAM is a .spmd file. It is compiled with one set of flags after the other by the
    target's own compiler (no such device is needed); what an earlier run compiled is
    read from the cache. The winner is saved as a preset for --preset FILE.

    Exit status: 0 fine, 1 nothing fits in memory or a compiler is missing, 2 bad use.
    """
    (target,) = targets_from((text,), target_file)
    starts = [preset_from(name) for name in presets]
    out = out or Path(f"{path.stem}-{target.text.replace(':', '-')}.yaml")
    if out.suffix not in {".yaml", ".yml"}:
        raise click.UsageError(f"--out {out}: a preset is a .yaml file")
    program = _load(path)
    with Steps() as steps:
        found = _tuned(program, target, budget, starts, steps)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1, allow_nan=False))
    else:
        from profiling._tuning.show import show_tuned

        show_tuned(found, Console())
    if not found.best.fits:
        raise SystemExit(1)
    _write(found, out, path)


def _load(path: Path) -> Program:
    from spmd._program.program import Program

    try:
        return Program.load(path)
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _tuned(
    program: Program,
    target: Target,
    budget: int,
    starts: Sequence[Preset],
    steps: Steps,
) -> Tuned:
    from profiling._compiling.compiled import CompileError

    try:
        return tune(program, target, budget=budget, starts=starts, watch=steps.step)
    except (NotInstalledError, CompileError) as error:
        raise click.ClickException(str(error)) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _write(found: Tuned, out: Path, path: Path) -> None:
    today = datetime.date.today().isoformat()
    try:
        write(found.preset(out.stem, date=today), out)
    except OSError as error:
        raise click.UsageError(f"--out {error.filename}: {error.strerror}") from error
    click.echo(
        f"wrote {out}; use it so: spmd inspect {path} --target {found.target.text} "
        f"--preset {out}",
        err=True,
    )
