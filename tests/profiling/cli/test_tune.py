"""`spmd tune`: what it prints, what it writes, and how it ends."""

import functools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import flags
from profiling._cli import tune as command
from profiling._cli.main import main
from tests.profiling.compilers import need
from tests.profiling.one_weight import program
from tests.profiling.schedules import GIB
from tests.profiling.tuned import FakeCompiler, failure, made

ESTIMATOR = "xla_gpu_enable_analytical_latency_estimator"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return program(8).save(tmp_path_factory.mktemp("programs") / "step.spmd")


@pytest.fixture
def compiles(monkeypatch):
    """Puts a formula in the compiler's place."""
    need("h100:1x8")

    def install(step):
        tune = functools.partial(command.tune, compile=FakeCompiler(step))
        monkeypatch.setattr(command, "tune", tune)

    return install


def run(*args: str | Path) -> Result:
    found = CliRunner().invoke(main, ["tune", *map(str, args)], env={"COLUMNS": "100"})
    assert found.exception is None or isinstance(found.exception, SystemExit)
    return found


def faster(given):
    return 10.0 - given.get(ESTIMATOR, 0)


def test_it_prints_and_writes(saved, compiles, tmp_path):
    compiles(faster)
    out = tmp_path / "mine.yaml"
    found = run(saved, "--target", "h100:1x8", "--budget", "12", "--out", out)
    assert found.exit_code == 0
    assert "Chosen step 9000.00 ms instead of 10000.00" in found.stdout
    assert flags.preset(out).values() == {ESTIMATOR: True}
    assert found.stderr == (
        f"wrote {out}; use it so: spmd inspect {saved} --target h100:1x8 --preset "
        f"{out}\n"
    )


def test_the_file_is_named_after_program_and_target(
    saved, compiles, tmp_path, monkeypatch
):
    compiles(faster)
    monkeypatch.chdir(tmp_path)
    assert run(saved, "--target", "h100:1x8", "--budget", "2").exit_code == 0
    assert flags.preset(tmp_path / "step-h100-1x8.yaml").backend == "gpu"


def test_as_json(saved, compiles, tmp_path):
    compiles(faster)
    args = (saved, "--target", "h100:1x8", "--budget", "12", "--json")
    first, again = (run(*args, "--out", tmp_path / "mine.yaml") for _ in range(2))
    assert first.stdout == again.stdout
    said = json.loads(first.stdout)
    assert said["best"]["flags"] == {ESTIMATOR: True}
    assert [t["label"] for t in said["trials"][:2]] == ["defaults", "gpu-overlap"]
    assert said["effects"][0]["without"]["step_s"] == 10.0


def test_a_start_of_ones_own(saved, compiles, tmp_path):
    compiles(faster)
    mine = tmp_path / "first.yaml"
    mine.write_text(f"flags: {{{ESTIMATOR}: true}}", encoding="utf-8")
    args = (saved, "--target", "h100:1x8", "--budget", "3", "--preset", mine)
    out = tmp_path / "mine.yaml"
    found = run(*args, "--json", "--out", out)
    assert json.loads(found.stdout)["trials"][-1]["label"] == "first"
    assert flags.preset(out).values() == {ESTIMATOR: True}


def test_nothing_fits(saved, compiles, tmp_path):
    compiles(lambda given: made(1.0, memory_bytes=99 * GIB))
    out = tmp_path / "mine.yaml"
    found = run(saved, "--target", "h100:1x8", "--out", out)
    assert found.exit_code == 1
    assert "nothing that was tried fits in memory" in found.stdout
    assert not out.exists()


def test_a_compiler_that_is_missing(saved, compiles, tmp_path):
    compiles(lambda given: failure("missing extra"))
    found = run(saved, "--target", "h100:1x8")
    assert found.exit_code == 1
    assert "Error: h100:1x8: missing extra" in found.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Missing option '--target'"),
        (["--target", "h10:1x8"], "did you mean 'h100'"),
        (["--target", "cpu:8"], "there is nothing to tune"),
        (["--target", "h100:2x8"], "is for 8 devices, h100:2x8 has 16"),
        (["--target", "h100:1x8", "--budget", "1"], "1 is not in the range"),
        (["--target", "h100:1x8", "--out", "x.json"], "a preset is a .yaml file"),
        (["--target", "h100:1x8", "--preset", "no"], "unknown preset 'no'"),
    ],
)
def test_bad_use(saved, args, words):
    found = run(saved, *args)
    assert found.exit_code == 2
    assert words in " ".join(found.stderr.split())
    assert found.stdout == ""


def test_no_program(tmp_path):
    found = run(tmp_path / "none.spmd", "--target", "h100:1x8")
    assert (found.exit_code, "No such file" in found.stderr) == (2, True)
    other = tmp_path / "other.spmd"
    other.write_text("x")
    found = run(other, "--target", "h100:1x8")
    assert found.exit_code == 2
    assert "other.spmd" in found.stderr


def test_a_file_that_cannot_be_written(saved, compiles, tmp_path):
    compiles(faster)
    out = tmp_path / "none" / "mine.yaml"
    found = run(saved, "--target", "h100:1x8", "--budget", "2", "--out", out)
    assert found.exit_code == 2
    assert "mine.yaml: No such file" in " ".join(found.stderr.split())


def test_help():
    found = run("--help")
    assert "spmd inspect step.spmd --target h100:2x8 --preset mine.yaml" in found.stdout
