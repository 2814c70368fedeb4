"""``spmd diff``: what one step does otherwise than another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from profiling._cli.options import (
    json_option,
    mesh_option,
    program_option,
    refuse,
    target_file_option,
)
from profiling._cli.progress import Steps
from profiling._cli.values import (
    flags_from,
    mesh_from,
    preset_from,
    targets_from,
    with_preset,
)
from profiling._compiling.compiled import CompileError, FlagValue
from profiling._diff.side import Side
from profiling._dump import Dump
from profiling._targets.target import Target

if TYPE_CHECKING:
    from flags import Preset
    from profiling._diff.diff import Diff
    from profiling._diff.limits import Limit
    from spmd._program.program import Program

_EPILOG = """\b
Examples:
  spmd diff old.spmd new.spmd --target h100:2x8
  spmd inspect step.spmd --target h100:2x8 --json > baseline.json
  spmd diff baseline.json step.spmd --fail-on wire_bytes=+5% --fail-on new_roles
  spmd diff step.spmd step.spmd --target h100:2x8 --preset-b gpu-overlap
  spmd diff dump1 dump2 --mesh fsdp=4,tensor=2 --target v5e:2x4

\b
--fail-on is one of
  FIGURE=+5%, =+1ms, =+2MiB  fails where B has more than that above A
  FIGURE=40GiB               fails where B has more than that
  new_roles, new_axes        fails where B has a role, or axes, that A has not
  added, moved, grew         fails where a group of collectives is
FIGURE is wire_bytes, num_collectives, num_runs, memory_bytes, argument_bytes,
temp_bytes, over_bytes, step_s or exposed_s. One role's: wire_bytes:activation.
"""


@dataclass(frozen=True, slots=True)
class _Asked:
    """How one side is to be made; `option` ends the options that are its own."""

    path: Path
    what: Program | Dump | tuple[Side, ...]
    flags: Mapping[str, FlagValue]
    preset: Preset | None
    option: str

    @property
    def is_program(self) -> bool:
        return not isinstance(self.what, Dump | tuple)


@click.command("diff", epilog=_EPILOG)
@click.argument("a", type=click.Path(path_type=Path), metavar="A")
@click.argument("b", type=click.Path(path_type=Path), metavar="B")
@click.option(
    "--target",
    "text",
    help="What to compile programs for; default: what the other side is for. Of dumps: "
    "what they ran on. Of JSON with several schedules: which.",
)
@target_file_option
@program_option
@mesh_option
@click.option("--preset-a", metavar="NAME|FILE", help="Flags to compile A with.")
@click.option("--preset-b", metavar="NAME|FILE", help="Flags to compile B with.")
@click.option("--flag-a", multiple=True, help="XLA flag for A, name=value.")
@click.option("--flag-b", multiple=True, help="XLA flag for B, name=value.")
@click.option(
    "--fail-on",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="End with 1 where B is beyond it.",
)
@json_option
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Groups of collectives, and inputs, to list.",
)
def diff_command(
    a: Path,
    b: Path,
    text: str | None,
    target_file: Path | None,
    name: str | None,
    mesh_text: str | None,
    preset_a: str | None,
    preset_b: str | None,
    flag_a: tuple[str, ...],
    flag_b: tuple[str, ...],
    limits: tuple[str, ...],
    as_json: bool,
    top: int,
) -> None:
    """Compare two steps: what moves, is held and is waited for otherwise.

    A and B are each a .spmd program, which is compiled for the target; what spmd
    inspect --json wrote; an HLO file; or what --xla_dump_to named. Collectives are
    grouped by role, axes and tensor, with * for numbers of layers.

    Exit status: 0 fine, 1 B is beyond a --fail-on, or a compile failed, 2 bad use.
    """
    from profiling._diff.diff import diff

    wanted = _limits(limits)
    mesh = mesh_from(mesh_text)
    (target,) = targets_from([text], target_file) if text else (None,)
    with Steps() as steps:
        asked = (
            _asked(a, flag_a, preset_a, "-a", steps),
            _asked(b, flag_b, preset_b, "-b", steps),
        )
        if not any(isinstance(side.what, Dump) for side in asked):
            for given, option in ((name, "--program"), (mesh, "--mesh")):
                refuse(given, option, "neither A nor B is a dump")
        target = target or _target_of_other(asked, target_file)
        sides = [_side(side, target, name, mesh, steps) for side in asked]
    found = diff(*sides)
    broken = _broken(wanted, found)
    if as_json:
        data = found.as_json(failed=broken)
        click.echo(json.dumps(data, indent=1, allow_nan=False))
    else:
        _show(found, broken, top)
    raise SystemExit(1 if broken else 0)


def _limits(texts: Sequence[str]) -> tuple[Limit, ...]:
    from profiling._diff.limits import Limit

    try:
        return tuple(Limit.parse(text) for text in texts)
    except ValueError as error:
        raise click.UsageError(f"--fail-on {error}") from error


def _broken(limits: Sequence[Limit], found: Diff) -> list[str]:
    try:
        return [words for limit in limits if (words := limit.exceeded(found))]
    except ValueError as error:
        raise click.UsageError(f"--fail-on {error}") from error


def _asked(
    path: Path, flags: Sequence[str], preset: str | None, option: str, steps: Steps
) -> _Asked:
    from profiling._diff.read import opened

    try:
        with steps.step(f"reading {path}"):
            what = opened(path)
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    entry = None if preset is None else preset_from(preset)
    asked = _Asked(path, what, flags_from(flags), entry, option)
    if not asked.is_program:
        refuse(flags, f"--flag{option}", f"{path} is compiled already")
        refuse(preset, f"--preset{option}", f"{path} is compiled already")
    return asked


def _target_of_other(asked: Sequence[_Asked], file: Path | None) -> Target | None:
    """What the side that is JSON of one schedule is for, where the other asks."""
    programs = [side for side in asked if side.is_program]
    for side in asked:
        if programs and isinstance(side.what, tuple) and len(side.what) == 1:
            if text := side.what[0].target:
                (found,) = targets_from([text], file)
                return found
    if programs:
        raise click.UsageError(
            f"{programs[0].path} is a program, not compiled yet: say for what, such as "
            f"--target h100:1x8; spmd targets lists them"
        )
    return None


def _side(
    asked: _Asked,
    target: Target | None,
    name: str | None,
    mesh: Mapping[str, int] | None,
    steps: Steps,
) -> Side:
    from profiling._diff.read import chosen, side

    try:
        if isinstance(asked.what, tuple):
            return chosen(asked.what, target, str(asked.path))
        if isinstance(asked.what, Dump):
            with steps.step(f"analysing {asked.path}"):
                return side(asked.what, target=target, mesh=mesh, name=name)
        assert target is not None, "programs without a target were refused"
        return _compiled(asked, asked.what, target, steps)
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from error
    except KeyError as error:
        raise click.UsageError(str(error.args[0])) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _compiled(asked: _Asked, program: Program, target: Target, steps: Steps) -> Side:
    from profiling._diff.read import side

    def progress(text: str, elapsed_s: float) -> None:
        steps.tick(f"compiling {asked.path} for {text}", elapsed_s)

    flags: Mapping[str, FlagValue] = asked.flags
    if asked.preset is not None:
        flags, messages = with_preset(asked.preset, program, target, flags)
        for message in messages:
            click.echo(message, err=True)
    try:
        return side(program, target=target, flags=flags, progress=progress)
    except CompileError as error:
        from profiling._report.show import show_error

        click.echo(f"{asked.path}:", err=True)
        show_error(error, Console(stderr=True))
        raise SystemExit(1) from error


def _show(found: Diff, broken: Sequence[str], top: int) -> None:
    from profiling._diff.show import show_diff

    console = Console()
    show_diff(found, console, top=top)
    if broken:
        console.print()
    for words in broken:
        console.print(f"failed: {words}", style="red", markup=False)
