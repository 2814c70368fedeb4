"""``spmd profile``: what a run really did, beside what the compiler planned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from profiling._cli.options import (
    html_option,
    json_option,
    target_file_option,
    top_option,
)
from profiling._cli.progress import Steps
from profiling._cli.values import mesh_from, targets_from
from profiling._read import read

if TYPE_CHECKING:
    from profiling._dump import Dump
    from profiling._profile.profile import Profile
    from profiling._targets.target import Target
    from spmd._program.program import Program

_EPILOG = """\b
Examples:
  spmd profile logs
  spmd profile logs --program step.spmd --html profile.html
  spmd profile node0.xplane.pb --target h100:2x8 --mesh fsdp=16
  spmd profile --port 9012 --seconds 5 --to logs
"""


@click.command("profile", epilog=_EPILOG)
@click.argument(
    "path", type=click.Path(path_type=Path), metavar="[DIR|FILE]", required=False
)
@click.option(
    "--program",
    "program_path",
    type=click.Path(path_type=Path),
    help="What was compiled: a .spmd program gives tensors, roles and axes; a dump "
    "gives HLO where the profile has none.",
)
@click.option("--mesh", "mesh_text", help="Names the axes, fsdp=4,tensor=2.")
@click.option(
    "--target",
    "target_text",
    help="What it ran on, such as h100:2x8: gives the estimate to compare with.",
)
@target_file_option
@click.option(
    "--xprof",
    is_flag=True,
    help="Have xprof count what operations compute and move (of CPU runs only those "
    "that profiling.capture recorded).",
)
@json_option
@html_option("Write a page there too.")
@top_option("Collectives and operations to list.")
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="Capture first, from a program that called profiling.serve(PORT).",
)
@click.option("--host", default="localhost", show_default=True, help="With --port.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.0, min_open=True),
    default=5.0,
    show_default=True,
    help="With --port: how long to capture.",
)
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --port: folder for the profile.",
)
def profile_command(
    path: Path | None,
    program_path: Path | None,
    mesh_text: str | None,
    target_text: str | None,
    target_file: Path | None,
    xprof: bool,
    as_json: bool,
    html_path: Path | None,
    top: int,
    port: int | None,
    host: str,
    seconds: float,
    to: Path | None,
) -> None:
    """Read a profile: step times, operations, collectives, and what holds it up.

    FILE is a *.xplane.pb, of CPU, GPU or TPU devices, whoever wrote it. DIR is the
    folder of a session, with a file for each host, or one above sessions, of which the
    newest is taken.

    Exit status: 0 fine, 2 bad use.
    """
    targets = targets_from([target_text] if target_text else [], target_file)
    mesh = mesh_from(mesh_text)
    if (path is None) == (port is None):
        raise click.UsageError(
            "give the folder or file of a profile, or --port and --to to capture one"
        )
    with Steps() as steps:
        if port is not None:
            with steps.step(f"capturing from {host}:{port}"):
                path = _captured(port, host, seconds, to)
        assert path is not None
        with steps.step(f"reading {path}"):
            program = None if program_path is None else _program(program_path)
            target = targets[0] if targets else None
            found = _profile(path, program, mesh, target, xprof)
        if html_path is not None:
            with steps.step(f"writing {html_path}"):
                _page(found, html_path)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1, allow_nan=False))
    else:
        from profiling._profile.show import show_profile

        show_profile(found, Console(), top=top)
    if html_path is not None:
        click.echo(f"wrote {html_path}", err=True)


def _captured(port: int, host: str, seconds: float, to: Path | None) -> Path:
    from profiling._capture.request import capture_outside

    if to is None:
        raise click.UsageError("--port needs --to DIR, a folder for the profile")
    try:
        return capture_outside(port=port, host=host, seconds=seconds, to=to)
    except OSError as error:
        raise click.UsageError(f"{error.filename or to}: {error.strerror}") from error
    except (RuntimeError, ValueError) as error:
        raise click.UsageError(str(error)) from error


def _program(path: Path) -> Program | Dump:
    try:
        return read(path)
    except OSError as error:
        raise click.UsageError(f"--program {path}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(f"--program {error}") from error


def _profile(
    path: Path,
    program: Program | Dump | None,
    mesh: Mapping[str, int] | None,
    target: Target | None,
    xprof: bool,
) -> Profile:
    from profiling._profile.read import read_profile

    try:
        return read_profile(
            path, program=program, mesh=mesh, target=target, xprof=xprof
        )
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _page(found: Profile, path: Path) -> None:
    try:
        found.save_html(path)
    except OSError as error:
        raise click.UsageError(f"--html {path}: {error.strerror}") from error
