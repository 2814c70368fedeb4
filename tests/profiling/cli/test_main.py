import json

import pytest
from click.testing import CliRunner

from profiling._cli.main import main
from profiling._targets.target import targets


def run(*args: str, columns: int = 80):
    return CliRunner().invoke(main, args, env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [80, 120])
def test_targets_fit_their_columns(columns):
    result = run("targets", columns=columns)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in result.stdout
    for target in targets().values():
        (line,) = (text for text in lines if text.startswith(target.text + " "))
        assert (target.chip.about in line) == (columns == 120)


def test_targets_as_json():
    result = run("targets", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == [t.as_json() for t in targets().values()]


def test_one_target():
    result = run("targets", "h100:2x8", "v5e:4x4*2")
    assert result.exit_code == 0
    assert "16 chips, 16 devices, 2 hosts" in result.stdout
    assert "dcn: 3.125 GB/s" in result.stdout
    (said,) = json.loads(run("targets", "h100:2x8", "--json").stdout)
    assert said["num_devices"] == 16


def test_a_file_of_targets(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("mine: {base: h100, about: Mine}", encoding="utf-8")
    result = run("targets", "--file", str(file))
    assert result.exit_code == 0
    assert "mine:1x8" in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["targets", "h10:2x8"], "did you mean 'h100'"),
        (["targets", "--file", "none.yaml"], "none.yaml: No such file"),
        (["target"], "No such command"),
        (["targets", "--jsn"], "No such option"),
    ],
)
def test_bad_use(args, words):
    result = run(*args)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_help_and_version():
    assert "see what" in run("--help").stdout.lower()
    assert "0 fine" not in run("targets", "--help").stdout
    assert run("--help").exit_code == 0


def test_as_a_program(run_script):
    result = run_script(
        """
        import sys
        from profiling._cli.main import main
        main(["targets", "nothing"])
        """
    )
    assert result.rc == 2
    assert "unknown name 'nothing'" in result.stderr
