"""`spmd inspect`: what it prints, what it writes, and how it ends."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiling._cli.main import main
from tests.profiling.compilers import need
from tests.profiling.hlo_files import DATA, JAX, STEP, TORCH_XLA, content, damaged
from tests.profiling.one_weight import program
from tests.profiling.programs import TARGETS, decoder_program, decoder_schedule
from tests.profiling.test_schedule_json import check

TOO_BIG = 200_000


def run(*args: str | Path, columns: int = 80) -> Result:
    """Run the command; whatever happens, there is no traceback."""
    found = CliRunner().invoke(
        main, ["inspect", *map(str, args)], env={"COLUMNS": str(columns)}
    )
    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert "Traceback" not in found.output
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "step.spmd"
    return decoder_program(8).save(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return program(8).save(tmp_path_factory.mktemp("programs") / "small.spmd")


# Programs


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("target", TARGETS)
def test_a_program(target, columns, tmp_path):
    schedule = decoder_schedule(target)
    path = decoder_program(schedule.target.num_devices).save(tmp_path / "step.spmd")
    found = run(path, "--target", target, columns=columns)
    assert (found.exit_code, found.stderr) == (0, "")
    lines = found.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0] == f"decoder on {target}"
    assert "kept from an earlier run" in " ".join(found.stdout.split())
    assert "The 10 largest" in found.stdout
    assert "programs.py:" in found.stdout  # the source line of a layer
    assert "Exposed longest" in found.stdout


def test_as_json(saved):
    found = run(saved, "--target", "cpu:8", "--json")
    assert (found.exit_code, found.stderr) == (0, "")
    said = json.loads(found.stdout)
    check(said, "inspect")
    assert said["schedules"] == [decoder_schedule("cpu:8").as_json()]
    assert said["failures"] == []


def test_several_targets(saved, tmp_path):
    page = tmp_path / "page.html"
    args = ("--target", "cpu:8", "--target", need("h100:1x8"), "--html", page)
    found = run(saved, *args, "--top", "1")
    assert found.exit_code == 0
    assert "decoder on cpu:8" in found.stdout
    assert "decoder on h100:1x8" in found.stdout
    assert "Side by side (times: estimate)" in found.stdout
    written = [f"wrote {tmp_path / name}" for name in
               ("page-cpu-8.html", "page-h100-1x8.html")]  # fmt: skip
    assert found.stderr.splitlines()[-2:] == written
    assert (tmp_path / "page-cpu-8.html").stat().st_size > 10_000


def test_a_flag(small):
    flag = ("--flag", "--xla_cpu_enable_fast_math=true")
    found = run(small, "--target", "cpu:8", *flag)
    assert found.exit_code == 0
    assert "flags: xla_cpu_enable_fast_math=true" in found.stdout


def test_a_preset(small, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("flags: {xla_cpu_enable_fast_math: true}", encoding="utf-8")
    found = run(small, "--target", "cpu:8", "--preset", mine)
    assert found.exit_code == 0
    assert "flags: xla_cpu_enable_fast_math=true" in found.stdout
    flag = ("--flag", "xla_cpu_enable_fast_math=false")
    found = run(small, "--target", "cpu:8", "--preset", mine, *flag)
    assert found.exit_code == 0
    assert "flags: xla_cpu_enable_fast_math=false" in found.stdout
    assert found.stderr.splitlines()[0] == (
        "xla_cpu_enable_fast_math stays at false, as --flag has it; preset mine has "
        "true"
    )


def test_a_preset_and_two_targets(small):
    args = ("--target", need("h100:1x8"), "--target", "a100:1x8")
    found = run(small, *args, "--preset", "gpu-overlap", "--json")
    schedules = json.loads(found.stdout)["schedules"]
    assert [s["target"]["text"] for s in schedules] == ["h100:1x8", "a100:1x8"]
    name = "xla_gpu_reduce_scatter_combine_threshold_bytes"
    assert [s["flags"] for s in schedules] == 2 * [{name: 1024}]


def test_a_preset_for_one_of_two_targets(small):
    args = ("--target", need("h100:1x8"), "--target", "cpu:8")
    found = run(small, *args, "--preset", "gpu-overlap")
    assert found.exit_code == 2
    assert "is for gpu, --target cpu:8 is a cpu" in " ".join(found.stderr.split())


def test_a_flag_that_is_refused_is_a_finding(small):
    found = run(small, "--target", "cpu:8", "--flag", "xla_no_such_flag=1")
    assert found.exit_code == 1
    assert "No such compile option: 'xla_no_such_flag'" in found.stdout
    again = run(small, "--target", "cpu:8", "--flag", "xla_no_such_flag=1", "--json")
    assert again.exit_code == 1
    said = json.loads(again.stdout)
    check(said, "inspect")
    assert said["schedules"] == []
    assert said["failures"][0]["kind"] == "flag"


def test_too_big_is_a_finding(tmp_path):
    path = program(8, TOO_BIG).save(tmp_path / "big.spmd")
    found = run(path, "--target", need("h100:1x8"))
    assert found.exit_code == 1
    assert "step on h100:1x8" in found.stdout  # a GPU's compiler makes it all the same
    assert "h100:1x8: does not fit in memory by" in found.stdout
    assert "inputs of role parameter" in found.stdout
    said = json.loads(run(path, "--target", "h100:1x8", "--json").stdout)
    check(said, "inspect")
    memory = said["schedules"][0]["memory"]
    over = said["failures"][0]["over_bytes"]
    assert over == memory["total_bytes"] - memory["capacity_bytes"] > 0


def test_without_a_target(small):
    found = run(small)
    assert found.exit_code == 2
    said = " ".join(found.stderr.split())
    assert "is a program for 8 devices, not compiled yet: say for what" in said
    assert "such as --target h100:1x8" in said
    assert "v5e:2x4" in said
    assert "cpu:8" in said


def test_a_target_of_another_size(small):
    found = run(small, "--target", "h100:2x8")
    assert found.exit_code == 2
    said = " ".join(found.stderr.split())
    assert "--target h100:2x8 has 16 devices" in said
    assert "is for 8 (Mesh(fsdp=8)). With 8 devices there are" in said


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--mesh", "fsdp=8"], "--mesh does not apply"),
        (["--program", "x"], "--program does not apply"),
        (["--target", "h10:1x8"], "did you mean 'h100'"),
        (["--flag", "=1"], "write name=value"),
        (["--flag", "xla_dump_to=x"], "compile uses the xla_dump_ flags itself"),
        (["--preset", "hlo-dump"], "compile uses the xla_dump_ flags itself"),
        (["--preset", "no-such"], "--preset: unknown preset 'no-such'"),
        (["--top", "0"], "0 is not in the range"),
        (["--html", "/none/page.html"], "--html /none/page.html: No such file"),
        (["--target-file", "none.yaml"], "none.yaml: No such file"),
    ],
)
def test_bad_use_with_a_program(small, args, words):
    found = run(small, "--target", "cpu:8", *args)
    assert found.exit_code == 2
    assert words in " ".join(found.stderr.split())
    assert found.stdout == ""


# Dumps


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("folder", [JAX, TORCH_XLA], ids=lambda p: p.name)
def test_a_dump(folder, columns):
    args = ("--mesh", "fsdp=8", "--target", "cpu:8")
    found = run(folder, *args, columns=columns)
    assert (found.exit_code, found.stderr) == (0, "")
    assert max(map(len, found.stdout.splitlines())) <= columns
    assert "read from " in found.stdout
    assert "What moves" in found.stdout
    assert "Time of a step (estimate)" in found.stdout


def test_the_largest_of_several_programs():
    found = run(JAX)
    assert found.stdout.startswith("jit_step\n")
    assert "has 2 more: jit_broadcast_in_dim#2, jit_broadcast_in_dim#4" in " ".join(
        found.stdout.split()
    )
    assert "no target: links, capacity and a timeline are not known" in " ".join(
        found.stdout.split()
    )
    other = run(JAX, "--program", "jit_broadcast_in_dim#4")
    assert other.stdout.startswith("jit_broadcast_in_dim#4\n")
    assert "Nothing: the module has no collectives." in other.stdout


@pytest.mark.parametrize("path", sorted(DATA.glob("*.gz")), ids=lambda p: p.name)
def test_a_file(path):
    said = json.loads(run(path, "--json").stdout)
    check(said, "inspect")
    assert said["schedules"][0]["source"] == str(path)


@pytest.mark.parametrize(
    ("path", "args", "words"),
    [
        (JAX, ["--target", "cpu:8", "--target", "v5e:2x4"], "give the one it ran on"),
        (JAX, ["--target", "cpu:4"], "it is for 8 devices, cpu:4 has 4"),
        (JAX, ["--mesh", "fsdp=4"], "it is for 8 devices, Mesh(fsdp=4) has 4"),
        (JAX, ["--mesh", "fsdp=3,tensor=-1"], "does not divide 8 devices"),
        (JAX, ["--flag", "xla_a=1"], "--flag does not apply"),
        (JAX, ["--preset", "cpu-debug"], "--preset does not apply"),
        (JAX, ["--program", "step"], "no program 'step' among 3; near: jit_step"),
        ("nowhere", [], "nowhere: No such file or directory"),
        (DATA, [], "no file of an HLO dump"),
        (DATA / "README.md", [], "no HLO text"),
    ],
)
def test_bad_use_with_a_dump(path, args, words):
    found = run(path, *args)
    assert found.exit_code == 2
    assert words in " ".join(found.stderr.split())
    assert found.stdout == ""


def test_a_damaged_file_in_a_dump(tmp_path):
    text = content(STEP)
    (tmp_path / STEP.name).write_bytes(text[: len(text) // 2])
    found = run(tmp_path)
    assert found.exit_code == 2
    assert STEP.name in "".join(found.stderr.split())


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_damage_never_ends_in_a_traceback(tmp_path, data):
    path = tmp_path / "step.txt"
    path.write_bytes(damaged(data, content(STEP)))
    found = run(path, "--mesh", "fsdp=4,tensor=2", "--target", "v5e:2x4")
    assert found.exit_code in (0, 1, 2)


def test_help():
    found = run("--help")
    assert found.exit_code == 0
    assert "Exit status: 0 fine, 1 a compile failed" in " ".join(found.stdout.split())
    assert "spmd inspect /tmp/dump --mesh fsdp=4,tensor=2" in found.stdout
