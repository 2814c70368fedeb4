"""Options and refusals that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

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
