"""Options that several commands have."""

import click
import pytest
from click.testing import CliRunner

from profiling._cli.options import html_option, refuse, top_option


def test_what_does_not_apply_is_refused_where_it_was_given():
    refuse(None, "--mesh", "there is none")
    refuse((), "--flag", "there is none")
    with pytest.raises(click.UsageError, match="--mesh does not apply: it has its own"):
        refuse({"fsdp": 8}, "--mesh", "it has its own")


def test_a_page_and_how_many_rows():
    @click.command
    @html_option("Write a page.")
    @top_option("Rows to list.")
    def command(html_path, top):
        click.echo(f"{html_path!r} {top}")

    runner = CliRunner()
    assert runner.invoke(command, []).output == "None 10\n"
    found = runner.invoke(command, ["--html", "a.html", "--top", "3"])
    assert found.output == "PosixPath('a.html') 3\n"
    assert runner.invoke(command, ["--top", "0"]).exit_code == 2
    assert "Rows to list." in runner.invoke(command, ["--help"]).output
