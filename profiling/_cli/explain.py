"""``spmd explain``: what in a program's sharding costs, why, and what removes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from profiling._cli.options import (
    json_option,
    target_file_option,
)
from profiling._cli.progress import Steps
from profiling._cli.values import flags_from, targets_from
from profiling._compiling.compiled import CompileError, FlagValue
from profiling._dump import Dump
from profiling._read import read
from profiling._targets.target import Target

if TYPE_CHECKING:
    from profiling._findings.finding import Finding
    from profiling._findings.verify import Verified
    from profiling._schedule import Schedule
    from spmd._program.program import Program

_EPILOG = """\b
Examples:
  spmd explain step.spmd --target h100:2x8
  spmd explain step.spmd --target h100:2x8 --verify --plan plan.yaml
"""


@click.command("explain", epilog=_EPILOG)
@click.argument("path", type=click.Path(path_type=Path), metavar="PROGRAM")
@click.option("--target", "text", required=True, help="What to compile it for.")
@target_file_option
@click.option("--flag", "flag_texts", multiple=True, help="XLA flag, name=value.")
@json_option
@click.option("--verify", "verifies", is_flag=True, help="Compile again with each fix.")
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=6,
    show_default=True,
    help="Fixes to compile.",
)
@click.option("--notes", is_flag=True, help="Show notes in full.")
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --verify: write the plan of the end state there.",
)
def explain_command(
    path: Path,
    text: str,
    target_file: Path | None,
    flag_texts: tuple[str, ...],
    as_json: bool,
    verifies: bool,
    most: int,
    notes: bool,
    plan_path: Path | None,
) -> None:
    """Say what in a step's sharding costs, why it is there, and what removes it.

    PROGRAM is a .spmd file. It is compiled for the target by that target's own
    compiler; no such device is needed. With --verify it is compiled again with each
    fix, and a fix that does not help is not offered.

    Exit status: 0 nothing worse than a note, 1 a problem, or it does not compile or
    fit, 2 bad use.
    """
    if plan_path is not None and not verifies:
        raise click.UsageError("--plan needs --verify, which finds the end state")
    (target,) = targets_from((text,), target_file)
    flags = flags_from(flag_texts)
    with Steps() as steps:
        with steps.step(f"reading {path}"):
            program = _read(path)
        schedule, findings = _explained(program, target, flags, steps)
        verified = None
        if verifies:
            verified = _verified(program, schedule, findings, most, steps)
            findings = verified.findings
    if as_json:
        from profiling._findings.as_json import document

        data = document(schedule, findings, verified)
        click.echo(json.dumps(data, indent=1, allow_nan=False))
    else:
        _show(schedule, findings, verified, notes)
    if plan_path is not None and verified is not None:
        _write(plan_path, verified)
    wrong = schedule.over_bytes > 0 or any(f.is_problem for f in findings)
    raise SystemExit(1 if wrong else 0)


def _read(path: Path) -> Program:
    try:
        found = read(path)
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if isinstance(found, Dump):
        raise click.UsageError(
            f"{path} is a dump, which does not say how things were to be split; give "
            f"the program that spmd.trace makes"
        )
    return found


def _explained(
    program: Program,
    target: Target,
    flags: Mapping[str, FlagValue],
    steps: Steps,
) -> tuple[Schedule, tuple[Finding, ...]]:
    from profiling._compiling.anyway import compile_anyway
    from profiling._findings.explain import explain

    def progress(name: str, elapsed_s: float) -> None:
        steps.tick(f"compiling for {name}", elapsed_s)

    try:
        schedule = compile_anyway(program, target, flags=flags, progress=progress)
        with steps.step("explaining"):
            return schedule, explain(program, schedule)
    except CompileError as error:
        from profiling._report.show import show_error

        show_error(error, Console(stderr=True))
        raise SystemExit(1) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _verified(
    program: Program,
    schedule: Schedule,
    findings: tuple[Finding, ...],
    most: int,
    steps: Steps,
) -> Verified:
    from profiling._findings.verify import verify

    def progress(name: str, elapsed_s: float) -> None:
        steps.tick(f"compiling again for {name}", elapsed_s)

    return verify(program, schedule, findings, most=most, progress=progress)


def _show(
    schedule: Schedule,
    findings: tuple[Finding, ...],
    verified: Verified | None,
    notes: bool,
) -> None:
    from profiling._findings.show import show_end, show_findings

    console = Console()
    show_findings(schedule, findings, console, notes=notes)
    if verified is not None:
        show_end(verified, console)


def _write(path: Path, verified: Verified) -> None:
    if verified.plan is None:
        mesh = f"; its mesh is {verified.mesh}" if verified.mesh else ""
        click.echo(f"no fix changes a spec: no plan was written{mesh}", err=True)
        return
    try:
        path.write_text(verified.plan.to_yaml(), encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--plan {path}: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)
