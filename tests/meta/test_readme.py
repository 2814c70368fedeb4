"""What the README shows runs as it stands."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RunScript = Callable[..., Any]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

DOCTEST = """
import doctest
import sys

text = open(sys.argv[1], encoding="utf-8").read()
test = doctest.DocTestParser().get_doctest(text, {}, "README.md", "README.md", 0)
result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
sys.exit(result.failed)
"""


def blocks(language: str) -> list[str]:
    """Fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def block_with(text: str) -> str:
    """The one Python block that has this text in it."""
    (found,) = [block for block in blocks("python") if text in block]
    return found


def test_the_readme_has_both_kinds_of_blocks() -> None:
    assert len(blocks("python")) == 8
    assert len(blocks("pycon")) == 1


@pytest.mark.parametrize("index", range(len(blocks("python"))))
def test_python_block_runs(index: int, run_script: RunScript) -> None:
    source = blocks("python")[index]
    result = run_script(source, env={**QUIET, "PJRT_DEVICE": None})
    assert result.rc == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout


def test_quick_start_trains(run_script: RunScript) -> None:
    """It ends with the grid of a weight after five finite losses."""
    result = run_script(blocks("python")[0], env=QUIET)
    lines = result.stdout.splitlines()
    losses = [float(line) for line in lines[:5]]
    assert losses == sorted(losses, reverse=True)
    assert lines[5].startswith("[256, 64] split (fsdp, None) on Mesh(fsdp=8)")


def test_the_bytes_of_a_pod(run_script: RunScript) -> None:
    """Two weights are gathered in the forward pass, one again in the backward pass."""
    weight, biases = 4096 * 16384 * 4 * 15 // 16, (4096 + 16384) * 4 * 15 // 16
    gathered, reduced = 3 * weight + biases, 2 * weight + biases
    result = run_script(
        block_with("profiling.compile"), env={**QUIET, "PJRT_DEVICE": None}
    )
    lines = result.stdout.splitlines()[:2]
    assert lines == [f"weight gather 4 {gathered}", f"gradient reduction 2 {reduced}"]
    assert all(f"`{line}`" in README for line in lines)


def test_a_checkpoint_comes_back_without_a_mesh(run_script: RunScript) -> None:
    result = run_script(
        block_with("checkpoint.Manager"), env={**QUIET, "PJRT_DEVICE": None}
    )
    assert result.stdout.splitlines() == ["[100, 200]", "200"]


def test_mistakes_say_what_the_readme_says(
    run_script: RunScript, tmp_path: Path
) -> None:
    path = tmp_path / "session.txt"
    path.write_text("".join(blocks("pycon")), encoding="utf-8")
    result = run_script(DOCTEST, str(path), env=QUIET)
    assert result.rc == 0, result.stdout + result.stderr


@pytest.mark.parametrize("package", ["spmd", "fsdpv2"])
def test_tables_name_every_public_name_and_no_other(package: str) -> None:
    table = README.split(f"| `{package}` | |\n")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", "\n".join(r.split("|")[1] for r in rows(table)))
    assert sorted(named) == sorted(importlib.import_module(package).__all__)


def rows(table: str) -> list[str]:
    """Rows of a table below its rule."""
    return table.splitlines()[1:]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_files_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
