"""Options and refusals that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

target_file_option = click.option(
    "--target-file",
    type=click.Path(path_type=Path),
    help="YAML of further chips, in the form of profiling/targets.yaml.",
)
program_option = click.option(
    "--program", "name", help="Which program of a dump; default: largest."
)
mesh_option = click.option(
    "--mesh", "mesh_text", help="Of a dump: names the axes, fsdp=4,tensor=2."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Write data instead of text."
)


def html_option(help_: str) -> Callable[[Command], Command]:
    """An option for the page to write.

    Args:
        help_: What the page is.

    Returns:
        A decorator; gives ``html_path``.
    """
    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option("--html", "html_path", type=kind, help=help_)


def top_option(help_: str) -> Callable[[Command], Command]:
    """An option for how many rows to list.

    Args:
        help_: Of what.

    Returns:
        A decorator; gives ``top``.
    """
    kind = click.IntRange(min=1)
    return click.option("--top", type=kind, default=10, show_default=True, help=help_)


def refuse(given: object, option: str, why: str) -> None:
    """End with bad use where an option was given that does not apply.

    Args:
        given: Its value.
        option: How it is written.
        why: What is in the way.

    Raises:
        click.UsageError: It was given.
    """
    if given:
        raise click.UsageError(f"{option} does not apply: {why}")
