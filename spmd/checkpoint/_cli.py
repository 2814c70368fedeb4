"""The command ``spmd checkpoint``: list, verify and convert.

Exit status: 0 fine, 1 something is damaged, 2 bad use. Listing and verifying load
neither torch nor a runtime.
"""

from __future__ import annotations

import json
import math
from typing import Any

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from spmd.checkpoint import _manifest
from spmd.checkpoint._error import CheckpointError
from spmd.checkpoint._folder import WRITING, Folder, folder_at
from spmd.checkpoint._manifest import Manifest, read_manifest
from spmd.checkpoint._verify import verify as find_damage

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Write data instead of a table."
)


@click.group("checkpoint")
def checkpoint() -> None:
    """List, verify and convert checkpoints; PATH may be an fsspec URL."""


@checkpoint.command("ls")
@json_option
@click.argument("path")
def ls(path: str, as_json: bool) -> None:
    """List the tensors of a checkpoint, or the checkpoints in a folder.

    Exits with 1 if there is none, or one that is incomplete.
    """
    folder = _folder(path)
    if folder.exists(_manifest.NAME):
        _list_tensors(_read(folder), folder, as_json=as_json)
        return
    rows = _checkpoints(folder)
    if not rows:
        raise click.ClickException(f"{folder.url} holds no checkpoint")
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        Console().print(_table(rows))
    if not all(row["complete"] for row in rows):
        raise SystemExit(1)


@checkpoint.command("verify")
@json_option
@click.argument("path")
def verify(path: str, as_json: bool) -> None:
    """Compare sizes and checksums of a checkpoint, or of all in a folder.

    Exits with 1 if anything is damaged or incomplete.
    """
    folder = _folder(path)
    inside = [] if folder.exists(_manifest.NAME) else _checkpoints(folder)
    urls = [f"{folder.url}/{row['name']}" for row in inside] or [folder.url]
    found = {url: find_damage(url) for url in urls}
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        for url, lines in found.items():
            click.echo(f"{url}: {'good' if not lines else 'damaged'}")
            for line in lines:
                click.echo(f"  {line}")
    if any(found.values()):
        raise SystemExit(1)


@checkpoint.command("convert")
@click.option(
    "--to",
    type=click.Choice(["checkpoint", "safetensors", "torch"]),
    help="Default: what DESTINATION is called, and what SOURCE is not.",
)
@click.argument("source")
@click.argument("destination")
def convert(source: str, destination: str, to: Any) -> None:
    """Rewrite a checkpoint, safetensors folder or torch.save file as another.

    A DESTINATION that ends in .pt, .pth or .bin becomes a file of torch.save.
    """
    from spmd.checkpoint._convert import convert as rewrite

    try:
        form = rewrite(source, destination, to=to)
    except CheckpointError as error:
        raise click.ClickException(str(error)) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"{destination}: written ({form})")


def _folder(path: str) -> Folder:
    try:
        return folder_at(path)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _read(folder: Folder) -> Manifest:
    try:
        return read_manifest(folder)
    except CheckpointError as error:
        raise click.ClickException(str(error)) from error


def _checkpoints(folder: Folder) -> list[dict[str, Any]]:
    """A row for each checkpoint inside, and each folder that was to become one."""
    rows = []
    for name in folder.names():
        inner = folder.inside(name)
        row = {"name": name, "complete": False, "step": None, "bytes": 0, "at": ""}
        if inner.exists(_manifest.NAME):
            try:
                manifest = read_manifest(inner)
            except CheckpointError:
                rows.append(row)
                continue
            rows.append(
                {
                    **row,
                    "complete": True,
                    "step": manifest.step,
                    "bytes": manifest.num_bytes,
                    "at": manifest.written.get("at", ""),
                }
            )
        elif WRITING in name or any(n.endswith(".distcp") for n in inner.names()):
            rows.append(row)
    return rows


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("checkpoint", overflow="fold")
    table.add_column("step", justify="right")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("written", no_wrap=True)
    for row in rows:
        step = "" if row["step"] is None else str(row["step"])
        when = row["at"] if row["complete"] else "incomplete"
        table.add_row(row["name"], step, decimal(row["bytes"]), when)
    return table


def _list_tensors(manifest: Manifest, folder: Folder, *, as_json: bool) -> None:
    if as_json:
        click.echo(manifest.to_json())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("key", overflow="fold")
    table.add_column("dtype", no_wrap=True)
    table.add_column("shape", no_wrap=True)
    table.add_column("pieces", justify="right")
    for key, entry in manifest.tensors.items():
        shape = str(list(entry.shape))
        table.add_row(key, entry.dtype, shape, str(len(entry.pieces)))
    for alias, key in manifest.aliases.items():
        table.add_row(f"{alias} = {key}", "", "", "")
    for key in manifest.objects:
        table.add_row(key, "object", "", "1")
    Console().print(table)
    num = sum(math.prod(entry.shape) for entry in manifest.tensors.values())
    when = manifest.written.get("at", "")
    click.echo(
        f"{folder.url}: step {manifest.step}, {len(manifest.tensors)} tensors, "
        f"{num:,} elements, {decimal(manifest.num_bytes)}, by {manifest.num_processes} "
        f"process(es), {when}"
    )
