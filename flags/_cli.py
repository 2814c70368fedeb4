"""``spmd flags list|show|lint``, a group that the command `spmd` takes in.

Exit status: 0 fine, 1 an error was found, 2 bad use.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import click
from rich.console import Console

from flags._applied import Applied
from flags._apply import plan
from flags._catalogue import Catalogue, catalogue
from flags._cli_text import flag_table, preset_text
from flags._flag import CHANNELS, Channel, FlagValue
from flags._library import BACKENDS, LIBRARIES, Backend, NotInstalledError, installed
from flags._lint import lint
from flags._preset import Preset, preset, presets
from flags._text import written
from flags._workload import Workload

WorkloadOf: TypeAlias = Callable[[Path | None, str], tuple[Workload | None, Backend]]
"""Figures of a program (None without one) on a target, and the target's kind. It raises
`ValueError` for what it cannot read."""

_as_json = click.option(
    "--json", "as_json", is_flag=True, help="Write data instead of text."
)
_library = click.option(
    "--library",
    "libraries",
    multiple=True,
    help=f"Only this one of {', '.join(LIBRARIES)}; may be repeated.",
)


def flags_group(workload_of: WorkloadOf | None = None) -> click.Group:
    """The group `flags`.

    Args:
        workload_of: Reads ``--program`` and ``--target``; None where nothing here can.

    Returns:
        A group with `list`, `show` and `lint`.
    """

    @click.group("flags")
    def group() -> None:
        """List XLA flags, check a line of them, print a preset's."""

    group.add_command(_list)
    group.add_command(_lint)
    group.add_command(_show(workload_of))
    return group


@click.command("list")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@_library
@_as_json
def _list(words: tuple[str, ...], libraries: tuple[str, ...], as_json: bool) -> None:
    """List the flags that the installed compilers accept.

    With WORDs only those with all of them in the name, such as: spmd flags list gpu
    combine.
    """
    found = [_matching(c, words) for c in _catalogues(libraries)]
    if as_json:
        content = [
            {
                "library": c.library,
                "version": c.version,
                "flags": [flag.as_json() for flag in c.flags.values()],
            }
            for c in found
        ]
        click.echo(json.dumps(content, indent=1))
    else:
        console = Console()
        console.print(flag_table(found, wide=console.width >= 100))
        missing = [name for name, e in LIBRARIES.items() if not e.installed]
        for name in missing if not libraries else []:
            console.print(
                f"{name} is not installed: pip install {LIBRARIES[name].install}",
                style="dim",
                markup=False,
            )


@click.command("lint", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TEXT]")
@click.option("--env", "env", is_flag=True, help="Check the variables of this shell.")
@click.option("--where", type=click.Choice(CHANNELS), default="XLA_FLAGS")
@click.option("--backend", type=click.Choice(BACKENDS), help="What is compiled for.")
@click.option("--fix", is_flag=True, help="Print the line without what is wrong.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@_library
@_as_json
def _lint(
    words: tuple[str, ...],
    env: bool,
    where: Channel,
    backend: Backend | None,
    fix: bool,
    strict: bool,
    libraries: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check a line of flags against the installed compilers.

    TEXT is what XLA_FLAGS would hold, such as "--xla_a=1 --xla_b"; a TEXT of - is read
    from stdin. Exit status 1 if there is an error.
    """
    if env == bool(words):
        raise click.UsageError('give either a line, such as "--xla_a=1", or --env')
    lines: dict[Channel, str] = {where: _given(" ".join(words))}
    if env:
        lines = _of_environment()
    try:
        results = [
            lint(line, where=channel, backend=backend, libraries=libraries)
            for channel, line in lines.items()
        ]
    except (NotInstalledError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        content = [result.as_json() for result in results]
        click.echo(json.dumps(content if env else content[0], indent=1))
    elif fix:
        for result in results:
            click.echo(f"{result.where}={result.fixed}" if env else result.fixed)
            for channel, moved in result.moved.items():
                click.echo(f"for {channel}: {moved}", err=True)
    else:
        shown = [result.show() for result in results]
        unset = "neither XLA_FLAGS nor LIBTPU_INIT_ARGS is set"
        click.echo("\n\n".join(shown) or unset)
    grave = {"error", "warning"} if strict else {"error"}
    if any(f.level in grave for result in results for f in result.findings):
        raise click.exceptions.Exit(1)


def _show(workload_of: WorkloadOf | None) -> click.Command:
    @click.command("show")
    @click.argument("name", metavar="PRESET|FILE", required=False)
    @click.option("--target", help="What it is for, such as h100:2x8.")
    @click.option(
        "--program",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A step that values are computed from.",
    )
    @click.option("--num-shards", type=int, help="Devices that split a weight.")
    @click.option("--num-hosts", type=int, help="Hosts that the devices are on.")
    @click.option("--layer-bytes", type=int, help="Weights of the largest layer.")
    @click.option("--set", "changes", multiple=True, help="name=value, instead.")
    @_library
    @_as_json
    def show(
        name: str | None,
        target: str | None,
        program: Path | None,
        num_shards: int | None,
        num_hosts: int | None,
        layer_bytes: int | None,
        changes: tuple[str, ...],
        libraries: tuple[str, ...],
        as_json: bool,
    ) -> None:
        """Print what a preset sets, as lines for a shell.

        Without a PRESET: which there are. What is printed besides the lines goes to
        stderr, so that this works: eval "$(spmd flags show gpu-overlap --target
        h100:2x8 --program step.spmd)".
        """
        if name is None:
            _show_all(as_json)
            return
        try:
            entry = preset(name)
            workload, backend = _workload(workload_of, program, target)
            workload = _changed(workload, num_shards, num_hosts, layer_bytes)
            _check_workload(entry, workload)
            found = plan(
                entry,
                workload=workload,
                change=_changes(changes),
                backend=backend,
                libraries=libraries,
            )
        except OSError as error:
            raise click.UsageError(f"{name}: {error.strerror}") from error
        except (NotInstalledError, ValueError) as error:
            raise click.UsageError(str(error)) from error
        _print(found, preset_text(entry, found), as_json)

    return show


def _check_workload(entry: Preset, workload: Workload | None) -> None:
    if workload is None and entry.needs_workload:
        raise ValueError(
            f"preset {entry.name!r} computes values from the step; give --target and "
            f"--program, or --num-shards (and --num-hosts, --layer-bytes)"
        )


def _print(found: Applied, text: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
        return
    click.echo(text, err=True)
    for message in found.messages:
        click.echo(f"# {message.text}", err=True)
    if found.options:
        given = " ".join(
            written(k, v).replace("--", "--flag ", 1) for k, v in found.options.items()
        )
        click.echo(f"# options: {given}", err=True)
    if found.variables:
        click.echo(found.export_lines())


def _show_all(as_json: bool) -> None:
    entries = presets().values()
    if as_json:
        content = [
            {"name": e.name, "about": e.about, "backend": e.backend} for e in entries
        ]
        click.echo(json.dumps(content, indent=1))
        return
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        click.echo(f"{entry.name:{width}}  {entry.backend or 'any'}  {entry.about}")


def _workload(
    workload_of: WorkloadOf | None, program: Path | None, target: str | None
) -> tuple[Workload | None, Backend | None]:
    if target is None:
        if program is not None:
            raise ValueError("--program needs --target, such as --target h100:2x8")
        return None, None
    if workload_of is None:
        raise ValueError("--target cannot be read here; run `spmd flags show`")
    return workload_of(program, target)


def _changed(
    workload: Workload | None,
    num_shards: int | None,
    num_hosts: int | None,
    layer_bytes: int | None,
) -> Workload | None:
    """Figures of a program, with those that were given by hand in their place."""
    if workload is None and num_shards is None:
        return None
    base = workload or Workload(num_shards or 1)
    given = {
        "num_shards": num_shards,
        "num_hosts": num_hosts,
        "layer_bytes": layer_bytes,
    }
    return replace(base, **{k: v for k, v in given.items() if v is not None})


def _changes(texts: Sequence[str]) -> dict[str, FlagValue]:
    found: dict[str, FlagValue] = {}
    for text in texts:
        name, equals, value = text.removeprefix("--").partition("=")
        if not equals or not name:
            raise ValueError(f"--set {text!r}: write name=value")
        found[name] = value
    return found


def _given(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _of_environment() -> dict[Channel, str]:
    return {
        channel: os.environ[channel]
        for channel in CHANNELS
        if os.environ.get(channel, "").strip()
    }


def _catalogues(names: Sequence[str]) -> list[Catalogue]:
    try:
        return [catalogue(entry.name) for entry in installed(names)]
    except (NotInstalledError, ValueError) as error:
        raise click.UsageError(str(error)) from error


def _matching(found: Catalogue, words: Sequence[str]) -> Catalogue:
    kept = {
        name: flag
        for name, flag in found.flags.items()
        if all(word.lower() in name for word in words)
    }
    return replace(found, flags=kept)
