"""The command `spmd`.

Exit status: 0 fine, 1 findings, 2 bad use. Text for people goes through rich, `--json`
writes data to stdout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from flags._cli import flags_group
from profiling._cli.diff import diff_command
from profiling._cli.explain import explain_command
from profiling._cli.inspect import inspect_command
from profiling._cli.profile import profile_command
from profiling._cli.tune import tune_command
from profiling._targets.show import memory_text
from profiling._targets.target import Target, targets
from profiling._tuning.workload import workload_of
from spmd.checkpoint._cli import checkpoint

_ROOMY = 100
"""Columns from which on a table of targets has those that are nice to have."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="xla-spmd")
def main() -> None:
    """See what XLA's partitioner makes of a PyTorch step, for any pod."""


main.add_command(diff_command)
main.add_command(explain_command)
main.add_command(inspect_command)
main.add_command(profile_command)
main.add_command(tune_command)
main.add_command(flags_group(workload_of))
main.add_command(checkpoint)


@main.command("targets")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="YAML of further chips, in the form of profiling/targets.yaml.",
)
@click.option("--json", "as_json", is_flag=True, help="Write data instead of a table.")
@click.argument("texts", nargs=-1, metavar="[TARGET]...")
def targets_command(file: Path | None, as_json: bool, texts: tuple[str, ...]) -> None:
    """List what programs can be compiled for, or describe TARGETs.

    Without a TARGET: one host of each chip there is. A TARGET is written h100:2x8
    (hosts x GPUs), v5e:4x4 or v5p:8x8x4 (chips of a slice), v5e:16x16*4 (4 slices),
    or cpu:8.
    """
    try:
        found = dict(targets(file))
        if texts:
            found = {text: Target.parse(text, file=file) for text in texts}
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps([t.as_json() for t in found.values()], indent=1))
    elif texts:
        click.echo("\n".join(target.describe() for target in found.values()))
    else:
        console = Console()
        console.print(_table(found, wide=console.width >= _ROOMY))
        console.print(
            "Figures of one device, vendors' peaks; --json has the source of each. "
            "spmd targets v5p:8x8x4 describes one target.",
            style="dim",
        )


def _table(found: Mapping[str, Target], *, wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("one host", no_wrap=True)
    if wide:
        table.add_column("product", no_wrap=True)
    for title in ("chips", "devices", "TFLOP/s\nbf16", "memory", "memory\nGB/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("near\nGB/s", no_wrap=True)
    table.add_column("far\nGB/s", no_wrap=True)
    for target in found.values():
        chip = target.chip
        links = [chip.near, *([chip.far] if chip.far else [])]
        texts = [
            f"{link.name} {target.of_device(link).bandwidth / 1e9:.4g}"
            for link in links
        ]
        memory = "-" if target.hbm_bytes is None else memory_text(target)
        table.add_row(
            target.text,
            *([chip.about] if wide else []),
            str(target.num_chips),
            str(target.num_devices),
            f"{target.peak_flops('bfloat16') / 1e12:.4g}",
            memory,
            f"{target.hbm_bandwidth / 1e9:.4g}",
            *(*texts, "-")[:2],
        )
    return table


if __name__ == "__main__":
    main()
