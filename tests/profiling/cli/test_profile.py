"""`spmd profile`: what it prints, what it writes, and how it ends."""

import json
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from profiling._cli.main import main
from tests.profiling.hlo_files import JAX
from tests.profiling.profiled_runs import jax_run
from tests.profiling.programs import decoder_program, decoder_schedule
from tests.profiling.test_schedule_json import check
from tests.profiling.xplanes import cpu_profile, replayed


def run(*args: str | Path, columns: int = 80) -> Result:
    """Run the command; whatever happens, there is no traceback."""
    found = CliRunner().invoke(
        main, ["profile", *map(str, args)], env={"COLUMNS": str(columns)}
    )
    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert "Traceback" not in found.output
    return found


@pytest.mark.parametrize("columns", [80, 120])
def test_a_folder(columns):
    found = run(jax_run(), "--mesh", "fsdp=8", columns=columns)
    assert (found.exit_code, found.stderr) == (0, "")
    assert max(map(len, found.stdout.splitlines())) <= columns
    assert "-bound: " in found.stdout
    assert "weight gather" in found.stdout


def test_a_file_as_data(tmp_path):
    path = cpu_profile(tmp_path / "x.xplane.pb")
    found = run(path, "--json")
    assert found.exit_code == 0
    check(json.loads(found.stdout), "profile")


def test_a_page(tmp_path):
    page = tmp_path / "page.html"
    found = run(cpu_profile(tmp_path / "x.xplane.pb"), "--html", page)
    assert (found.exit_code, found.stderr) == (0, f"wrote {page}\n")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    found = run(tmp_path / "x.xplane.pb", "--html", tmp_path / "no" / "page.html")
    assert found.exit_code == 2
    assert "--html" in found.stderr


def test_a_program_names_what_moved(tmp_path):
    schedule = decoder_schedule("h100:2x8")
    hlo = tmp_path / "step.hlo.pb"
    assert schedule.compiled is not None
    hlo.write_bytes(schedule.compiled.hlo)
    path = replayed(tmp_path / "x.xplane.pb", schedule)
    found = run(
        path, "--program", hlo, "--target", "h100:2x8", "--mesh", "fsdp=8,tensor=2"
    )
    assert found.exit_code == 0
    assert "measured is 1x of it" in found.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "give the folder or file of a profile, or --port and --to"),
        (["here", "--port", "9012"], "give the folder or file of a profile, or --port"),
        (["nowhere"], "nowhere: No such file or directory"),
        ([JAX], "no profile among"),
        ([next(JAX.glob("*.txt"))], "no profile, or a damaged one"),
        (["PROFILE", "--mesh", "fsdp"], "--mesh 'fsdp'"),
        (["PROFILE", "--target", "h100:9x9x9"], "h100:9x9x9"),
        (["PROFILE", "--program", "nowhere.spmd"], "--program nowhere.spmd: No such"),
        (["PROFILE", "--program", __file__], "--program"),
        (["--port", "9012"], "--port needs --to DIR"),
    ],
    ids=lambda value: None if isinstance(value, list) else value[:24],
)
def test_bad_use(args, words, tmp_path):
    path = cpu_profile(tmp_path / "x.xplane.pb")
    found = run(*[path if arg == "PROFILE" else arg for arg in args])
    assert found.exit_code == 2
    assert words in " ".join(found.stderr.split())


def test_a_program_that_did_not_run(tmp_path):
    program = decoder_program(8).save(tmp_path / "decoder.spmd")
    found = run(jax_run(), "--program", program)
    assert found.exit_code == 2
    assert "inputs" in found.stderr


def test_capturing_first(tmp_path, monkeypatch):
    asked = {}

    def capture_outside(**how):
        asked.update(how)
        return cpu_profile(tmp_path / "session" / "x.xplane.pb").parent

    fake = types.SimpleNamespace(capture_outside=capture_outside)
    monkeypatch.setitem(sys.modules, "profiling._capture.request", fake)
    found = run("--port", "9012", "--seconds", "2", "--to", tmp_path)
    assert found.exit_code == 0
    assert asked == {"port": 9012, "host": "localhost", "seconds": 2.0, "to": tmp_path}
    assert "compute-bound" in found.stdout


@pytest.mark.parametrize(
    "error",
    [
        ValueError("nobody listens"),
        RuntimeError("the client ended"),
        OSError(111, "Connection refused"),
    ],
    ids=["bad use", "client", "system"],
)
def test_a_capture_that_fails(tmp_path, monkeypatch, error):
    def capture_outside(**how):
        raise error

    fake = types.SimpleNamespace(capture_outside=capture_outside)
    monkeypatch.setitem(sys.modules, "profiling._capture.request", fake)
    found = run("--port", "9012", "--to", tmp_path)
    assert found.exit_code == 2
    assert error.args[-1] in found.stderr
