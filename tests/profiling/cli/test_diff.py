"""`spmd diff`: what it takes, what it prints, and how it ends."""

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from profiling._cli.main import main
from profiling._compiling.outcome import Outcome, document
from profiling._targets.target import Target
from tests.profiling.hlo_files import JAX, STEP, TORCH_XLA
from tests.profiling.one_weight import program
from tests.profiling.schedules import COLLECTIVES, collective, moved, schedule

MORE = (*COLLECTIVES, collective("more", moved("activation", 70)))


def run(*args: object, code: int = 0) -> Result:
    found = CliRunner().invoke(main, ["diff", *map(str, args)], env={"COLUMNS": "80"})
    assert found.exit_code == code, found.output
    assert found.exception is None or isinstance(found.exception, SystemExit)
    return found


def write(path: Path, *schedules) -> Path:
    outcomes = [Outcome("", one) for one in schedules]
    path.write_text(json.dumps(document(outcomes)), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    more = schedule(collectives=MORE)
    return write(tmp_path / "a.json", schedule()), write(tmp_path / "b.json", more)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return program(8).save(tmp_path_factory.mktemp("programs") / "step.spmd")


def test_text(files):
    text = " ".join(run(*files).stdout.split())
    assert "A step on h100:1x8" in text
    assert "on the wire 700 B 770 B +70 B +10.0%" in text
    assert "1 added" in text


def test_nothing(files):
    assert "Nothing differs." in run(files[0], files[0], "--fail-on", "added").stdout


def test_data(files):
    limits = ("--fail-on", "wire_bytes=+5%", "--fail-on", "wire_bytes=+50%")
    data = json.loads(run(*files, "--json", *limits, code=1).stdout)
    assert data["a"]["figures"]["wire_bytes"] == 700
    assert [c["what"] for c in data["changes"]] == ["added"]
    assert len(data["failed"]) == 1
    assert json.loads(run(*files, "--json").stdout)["failed"] == []


@pytest.mark.parametrize(
    ("limit", "code"),
    [("wire_bytes=+5%", 1), ("wire_bytes=+10%", 0), ("new_roles", 1), ("moved", 0)],
)
def test_limits(files, limit, code):
    found = run(*files, "--fail-on", limit, code=code)
    assert ("failed: " + limit in found.stdout) == bool(code)


def test_the_target_chooses_among_several(tmp_path):
    far = dataclasses.replace(
        schedule(collectives=MORE), target=Target.parse("h100:2x4")
    )
    both = write(tmp_path / "both.json", schedule(), far)
    one = write(tmp_path / "one.json", schedule())
    same = run(both, one, "--target", "h100:1x8")
    assert "Nothing differs." in same.stdout
    assert "is for h100:1x8, h100:2x4: say which" in run(both, one, code=2).output
    found = run(both, one, "--target", "h100:2x4", code=2)
    assert "one.json is for h100:1x8, not h100:2x4" in found.output


# Dumps


def test_dumps():
    found = run(JAX, STEP, "--mesh", "data=4,model=2", "--target", "cpu:8")
    assert "Collectives: the same." in found.stdout or "Nothing" in found.stdout
    other = run(JAX, TORCH_XLA, "--json")
    assert json.loads(other.stdout)["changes"]


def test_a_program_of_a_dump():
    assert "no program 'step'" in run(JAX, JAX, "--program", "step", code=2).output
    named = run(JAX, JAX, "--program", "jit_step")
    assert "Nothing differs." in named.stdout


# Programs


def test_a_program_and_its_baseline(saved, tmp_path):
    inspected = CliRunner().invoke(
        main, ["inspect", str(saved), "--target", "cpu:8", "--json"]
    )
    baseline = tmp_path / "baseline.json"
    baseline.write_text(inspected.stdout, encoding="utf-8")
    limits = ("--fail-on", "wire_bytes=+0%", "--fail-on", "new_roles")
    assert "Nothing differs." in run(baseline, saved, *limits).stdout


def test_flags_of_one_side(saved):
    flag = ("--flag-b", "xla_cpu_enable_fast_math=true")
    found = run(saved, saved, "--target", "cpu:8", *flag, "--json")
    (note,) = json.loads(found.stdout)["notes"]
    assert note == "other flags: xla_cpu_enable_fast_math (A not set, B true)"


def test_a_preset_of_one_side(saved, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("flags: {xla_cpu_enable_fast_math: true}", encoding="utf-8")
    off = ("--flag-a", "xla_cpu_enable_fast_math=false", "--preset-a", mine)
    found = run(saved, saved, "--target", "cpu:8", *off, "--preset-b", mine)
    assert "stays at false, as --flag has it" in found.stderr
    assert "A false, B true" in " ".join(found.stdout.split())


def test_a_compile_that_fails(saved):
    flag = ("--flag-b", "xla_no_such_flag=1")
    found = run(saved, saved, "--target", "cpu:8", *flag, code=1)
    assert "step.spmd:" in found.stderr
    assert "xla_no_such_flag" in found.stderr


# Bad use


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--fail-on", "nothing"], "--fail-on 'nothing' is no limit"),
        (["--flag-a", "xla_a=1"], "--flag-a does not apply"),
        (["--preset-b", "cpu-debug"], "--preset-b does not apply"),
        (["--program", "x"], "--program does not apply: neither A nor B is a dump"),
        (["--mesh", "fsdp=8"], "--mesh does not apply"),
        (["--target", "nothing"], "nothing"),
    ],
)
def test_bad_use(files, args, words):
    assert words in " ".join(run(*files, *args, code=2).output.split())


def test_what_cannot_be_compared(files, saved, tmp_path):
    assert "not compiled yet" in run(saved, saved, code=2).output
    assert "No such file" in run("nowhere", files[0], code=2).output
    wrong = run(saved, saved, "--target", "cpu:4", code=2).output
    assert "8" in wrong and "cpu:4" in wrong
    bad = tmp_path / "bad.json"
    bad.write_text("{", encoding="utf-8")
    assert "damaged or cut short" in run(bad, files[0], code=2).output


def test_times_that_are_not_known(tmp_path):
    timeless = write(tmp_path / "t.json", schedule(timeline=None))
    found = run(timeless, timeless, "--fail-on", "exposed_s=+1ms", code=2)
    assert "exposed_s of B (step) is not known" in " ".join(found.output.split())
