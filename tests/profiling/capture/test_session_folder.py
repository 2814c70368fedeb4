"""Where a capture is written, by one process or several."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from profiling import read_profile
from profiling._capture import device_planes, session_folder
from profiling._capture.recorders import Recorder, recorders
from profiling._capture.session_folder import (
    checked,
    complete,
    new_session,
    write,
    write_programs,
)
from profiling._profile.space import read_trace
from profiling._profile.xplane_proto import SpaceParts
from spmd._jax import running as running_module
from spmd.checkpoint import _team
from tests.profiling import captured
from tests.profiling.converters import converted, needs_xprof, rows
from tests.profiling.xplanes import Plane, cpu_profile

ROOT = Path(__file__).resolve().parents[3]


def test_a_folder_is_made_and_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checked("runs/a") == tmp_path / "runs" / "a"
    assert list((tmp_path / "runs/a/plugins/profile").iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "error", "message"),
    [
        (7, TypeError, "7 is no path"),
        ("gs://bucket/run", ValueError, "'gs://bucket/run' is a URL"),
    ],
    ids=["number", "url"],
)
def test_what_is_no_folder(folder, error, message):
    with pytest.raises(error, match=message):
        checked(folder)


def test_a_folder_on_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written to \(Not a directory\)"):
        checked(tmp_path / "file")


def test_names_are_times_and_new(tmp_path):
    paths = [new_session(tmp_path, recorders()[0]) for _ in range(3)]
    assert len(set(paths)) == 3
    assert all(re.fullmatch(r"\d{4}(_\d\d){5}(_\d)?", p.name) for p in paths)


class Seam:
    """A process among others."""

    def __init__(self, index: int) -> None:
        self.index = index

    def team(self) -> tuple[int, int]:
        return self.index, 2


@pytest.mark.parametrize("name", ["2026_11_30_05_12_07", "2026_11_30_05_12_07_2"])
def test_torch_xla_tells_the_others_in_digits(name, tmp_path, monkeypatch):
    told = []

    def of_process_zero(team, number):
        told.append(number)
        return told[0]

    monkeypatch.setattr(_team, "of_process_zero", of_process_zero)
    monkeypatch.setattr(session_folder.time, "strftime", lambda _: name)
    paths = [
        new_session(tmp_path, Recorder("torch_xla", Seam(index))) for index in (0, 1)
    ]
    assert paths == [tmp_path / "plugins" / "profile" / name] * 2
    assert told == [int(name.replace("_", "")), 0]


def test_a_process_that_captures_alone_is_warned(tmp_path, monkeypatch):
    monkeypatch.setattr(session_folder, "_of_process_zero", lambda *arguments: None)
    with pytest.warns(UserWarning, match="what process 1 recorded is in a folder of"):
        path = new_session(tmp_path, Recorder("jax", Seam(1)))
    assert path.is_dir()


def test_files_are_named_by_host_and_process(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node 7.example")
    space = SpaceParts(planes=[Plane("/host:CPU").bytes()]).SerializeToString()
    one = write(tmp_path, space, (0, 1))
    two = write(tmp_path, space, (1, 2), suffix="_jax")
    assert one.name == "node_7.example.xplane.pb"
    assert two.name == "node_7.example_p1_jax.xplane.pb"
    assert two.read_bytes().endswith(b"node_7.example")
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_written_has_planes_of_cpu_devices(tmp_path):
    made = cpu_profile(tmp_path / "made" / "x.xplane.pb")
    found = write(tmp_path, made.read_bytes(), (0, 1))
    assert found.read_bytes().count(b"(no TPU: read from") == 2
    before = read_trace(made)
    assert len(read_trace(found).ops) == len(before.ops) > 0


def test_what_cannot_be_read_is_written_as_it_is(tmp_path, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr(device_planes, "with_device_planes", broken)
    made = cpu_profile(tmp_path / "made" / "x.xplane.pb").read_bytes()
    with pytest.warns(UserWarning, match=r"no operations of CPU .*DivisionError: no s"):
        found = write(tmp_path, made, (0, 1))
    assert found.read_bytes() == made


def test_profiles_of_another_program_get_them_too(tmp_path):
    paths = [cpu_profile(tmp_path / f"node{n}.xplane.pb") for n in range(2)]
    complete(tmp_path)
    assert all(b"CPU 1 (no TPU" in path.read_bytes() for path in paths)
    times = [path.stat().st_mtime_ns for path in paths]
    complete(tmp_path)
    assert times == [path.stat().st_mtime_ns for path in paths]
    assert len(list(tmp_path.iterdir())) == 2


def test_profiles_that_may_not_be_changed_are_left(tmp_path, monkeypatch):
    path = cpu_profile(tmp_path / "node0.xplane.pb")
    before = path.read_bytes()

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(session_folder.os, "replace", denied)
    with pytest.warns(UserWarning, match="left as it is .Permission denied.: Tensor"):
        complete(tmp_path)
    assert path.read_bytes() == before


def test_programs_of_one_name_are_all_written(tmp_path):
    step = captured.compiled_step("jax")
    captured.loop(step, 1)
    count = len(running_module.programs())
    write_programs(tmp_path)
    write_programs(tmp_path)
    assert count and len(list(tmp_path.glob("*.spmd"))) == 2 * count


TWO = """
import sys
import jax
process, port = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, process)
import spmd
spmd.init(runtime="jax", cpu_devices=4)
import torch
import profiling

torch.manual_seed(0)
mesh = spmd.Mesh({"fsdp": 8})
model = torch.nn.Linear(32, 32)
spmd.mark_sharding(model.weight, mesh, ("fsdp", None))

def train_step(x):
    loss = model(x).square().mean()
    loss.backward()
    model.zero_grad()
    return loss

step = spmd.compile_step(train_step, model=model)
part, parts = spmd.data_rank(mesh)
rows = torch.rand(16, 32)[8 * part : 8 * part + 8]
for _ in range(2):
    with profiling.capture("run", steps=range(1, 3)) as capture:
        for x in spmd.ShardedLoader([rows] * 4, mesh):
            step(x).item()
    print("PATH", capture.path.name)
"""


@needs_xprof
@pytest.mark.slow
def test_two_processes_write_into_one_folder(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    script = tmp_path / "script.py"
    script.write_text(TWO)
    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(index), port],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    outputs = [process.communicate(timeout=240) for process in running]
    assert [p.returncode for p in running] == [0, 0], [e[-2000:] for _, e in outputs]
    names = [re.findall(r"PATH (\S+)", out) for out, _ in outputs]
    assert names[0] == names[1] and len(set(names[0])) == 2
    for name in names[0]:
        folder = tmp_path / "run" / "plugins" / "profile" / name
        ends = sorted(p.name.rpartition("_p")[2] for p in folder.glob("*.pb"))
        assert ends == ["0.xplane.pb", "1.xplane.pb"]
        assert len(list(folder.glob("*.spmd"))) == 1
        for path in folder.glob("*.pb"):
            found = jax.profiler.ProfileData.from_file(str(path))
            assert captured.names(found)["train"] == 2
            assert captured.operations(found)
    # In one session, as both we and xprof read it: two steps of all eight devices.
    profile = read_profile(folder)
    assert (profile.num_devices, len(profile.steps)) == (8, 2)
    files = sorted(folder.glob("*.pb"))
    found = converted(files, tmp_path / "tools", "hlo_stats", "overview_page")
    counts = {r["hlo_op_name"]: r["occurrences"] for r in rows(found["hlo_stats"])}
    reduced = [n for name, n in counts.items() if name.startswith("all-reduce")]
    assert reduced and all(n == 2 * 8 for n in reduced), counts
    _, steps, environment, *_ = found["overview_page"]
    assert environment["p"]["device_type"] == "CPU"
    assert len(rows(steps)) == 2
    assert all(row["stepTimeMs"] > 0 for row in rows(steps))
