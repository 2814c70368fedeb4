"""``spmd inspect``: a program or a dump, and what a compiler makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from profiling._cli.options import (
    html_option,
    json_option,
    mesh_option,
    program_option,
    refuse,
    target_file_option,
    top_option,
)
from profiling._cli.progress import Steps
from profiling._cli.values import (
    flags_from,
    mesh_from,
    preset_from,
    targets_from,
    with_preset,
)
from profiling._compiling.compiled import FlagValue
from profiling._dump import Dump, DumpedProgram
from profiling._read import read
from profiling._targets.fit import fitting
from profiling._targets.target import Target

if TYPE_CHECKING:
    from flags import Preset
    from profiling._compiling.outcome import Outcome
    from spmd._program.program import Program

_EPILOG = """\b
Examples:
  spmd inspect step.spmd --target h100:2x8
  spmd inspect step.spmd --target h100:2x8 --target v5e:4x4 --html report.html
  spmd inspect step.spmd --target h100:2x8 --preset gpu-overlap
  spmd inspect /tmp/dump --mesh fsdp=4,tensor=2 --target v5e:2x4
"""


@click.command("inspect", epilog=_EPILOG)
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE|DUMP_DIR")
@click.option(
    "--target",
    "texts",
    multiple=True,
    help="What to compile a program for, such as h100:2x8; may be repeated. "
    "Of a dump: what it ran on.",
)
@target_file_option
@program_option
@mesh_option
@click.option(
    "--preset",
    "preset_text",
    metavar="NAME|FILE",
    help="Flags to compile with, such as gpu-overlap; see spmd flags show.",
)
@click.option(
    "--flag",
    "flag_texts",
    multiple=True,
    help="XLA flag, name=value; wins over the preset's.",
)
@json_option
@html_option("Write a page there too; one for each of several targets.")
@top_option("Collectives and tensors to list.")
def inspect_command(
    path: Path,
    texts: tuple[str, ...],
    target_file: Path | None,
    name: str | None,
    mesh_text: str | None,
    preset_text: str | None,
    flag_texts: tuple[str, ...],
    as_json: bool,
    html_path: Path | None,
    top: int,
) -> None:
    """See what a compiler makes of a step: memory, what moves, what is exposed.

    FILE is a .spmd program, which is compiled for each --target by that target's own
    compiler (no such device is needed), or an HLO file that XLA dumped. DUMP_DIR is
    what --xla_dump_to named.

    Exit status: 0 fine, 1 a compile failed or it does not fit in memory, 2 bad use.
    """
    targets = targets_from(texts, target_file)
    flags = flags_from(flag_texts)
    preset = None if preset_text is None else preset_from(preset_text)
    mesh = mesh_from(mesh_text)
    with Steps() as steps:
        with steps.step(f"reading {path}"):
            what = _read(path)
        if isinstance(what, Dump):
            refuse(flag_texts, "--flag", f"{path} is compiled already")
            refuse(preset, "--preset", f"{path} is compiled already")
            chosen = _choose(what, name)
            outcomes = _of_dump(chosen, targets, mesh, steps)
        else:
            chosen = None
            refuse(name, "--program", f"{path} is one program")
            refuse(mesh, "--mesh", f"{path} has its own, {what.mesh or 'one device'}")
            _check_targets(what, path, targets, target_file)
            outcomes = _of_program(what, targets, preset, flags, steps)
        pages = _pages(outcomes, html_path, steps)
    if as_json:
        from profiling._compiling.outcome import document

        click.echo(json.dumps(document(outcomes), indent=1, allow_nan=False))
    else:
        _show(outcomes, top)
        if isinstance(what, Dump):
            _others(what, chosen)
    for page in pages:
        click.echo(f"wrote {page}", err=True)
    raise SystemExit(1 if any(o.is_finding for o in outcomes) else 0)


def _read(path: Path) -> Program | Dump:
    try:
        return read(path)
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _choose(dump: Dump, name: str | None) -> DumpedProgram:
    if name is None:
        return dump.largest
    try:
        return dump.program(name)
    except KeyError as error:
        raise click.UsageError(str(error.args[0])) from error


def _of_dump(
    program: DumpedProgram,
    targets: Sequence[Target],
    mesh: Mapping[str, int] | None,
    steps: Steps,
) -> tuple[Outcome, ...]:
    from profiling._analyse import analyse
    from profiling._compiling.outcome import Outcome

    if len(targets) > 1:
        raise click.UsageError(
            f"--target is given {len(targets)} times, but a dump is compiled already; "
            f"give the one it ran on"
        )
    target = targets[0] if targets else None
    try:
        with steps.step(f"analysing {program.name}"):
            schedule = analyse(program, mesh=mesh, target=target)
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return (Outcome("" if target is None else target.text, schedule),)


def _check_targets(
    program: Program, path: Path, targets: Sequence[Target], file: Path | None
) -> None:
    """Refuse what cannot be compiled before anything is."""
    number = program.num_devices
    devices = f"{number} device{'' if number == 1 else 's'}"
    fitted = fitting(number, file=file)
    fit = ", ".join(fitted)
    if not targets:
        likely = next((t for t in fitted if t.startswith("h100:")), fitted[-1])
        raise click.UsageError(
            f"{path} is a program for {devices}, not compiled yet: say for what, such "
            f"as --target {likely}. With {devices} there are {fit}; "
            f"spmd targets lists them"
        )
    for target in targets:
        if target.num_devices != number:
            raise click.UsageError(
                f"--target {target.text} has {target.num_devices} devices, {path} is "
                f"for {number} ({program.mesh or 'no mesh'}). With {devices} there are "
                f"{fit}"
            )


def _of_program(
    program: Program,
    targets: Sequence[Target],
    preset: Preset | None,
    flags: Mapping[str, FlagValue],
    steps: Steps,
) -> tuple[Outcome, ...]:
    from profiling._compiling.outcome import compiled_outcomes

    def progress(target: str, elapsed_s: float) -> None:
        steps.tick(f"compiling for {target}", elapsed_s)

    try:
        if preset is None:
            return compiled_outcomes(program, targets, flags=flags, progress=progress)
        # A preset's values depend on the target, so each has flags of its own.
        sets = [with_preset(preset, program, target, flags) for target in targets]
        outcomes: list[Outcome] = []
        for target, (both, messages) in zip(targets, sets, strict=True):
            for message in messages:
                click.echo(message, err=True)
            outcomes += compiled_outcomes(
                program, [target], flags=both, progress=progress
            )
        return tuple(outcomes)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _pages(
    outcomes: Sequence[Outcome], path: Path | None, steps: Steps
) -> tuple[Path, ...]:
    if path is None:
        return ()
    from profiling._compiling.outcome import save_pages

    try:
        with steps.step(f"writing {path}"):
            return save_pages(outcomes, path)
    except OSError as error:
        raise click.UsageError(f"--html {error.filename}: {error.strerror}") from error


def _show(outcomes: Sequence[Outcome], top: int) -> None:
    from profiling._report.show import show, show_error, show_side_by_side

    console = Console()
    for i, outcome in enumerate(outcomes):
        if i:
            console.print()
        if outcome.schedule is not None:
            show(outcome.schedule, console, top=top)
        if outcome.error is not None:
            show_error(outcome.error, console)
    if len(outcomes) > 1:
        console.print()
        show_side_by_side(outcomes, console)


def _others(dump: Dump, chosen: DumpedProgram | None) -> None:
    names = [p.name for p in dump.programs if p is not chosen]
    if names:
        more = f"{len(names)} more: {', '.join(names)} (--program NAME)"
        Console().print(f"{dump.path} has {more}", markup=False, highlight=False)
