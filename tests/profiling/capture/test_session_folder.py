"""Where a capture is written, by one process or several."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from profiling._capture import session_folder
from profiling._capture.recorders import Recorder, recorders
from profiling._capture.session_folder import (
    checked,
    new_session,
    write,
    write_programs,
)
from spmd import _running
from spmd.checkpoint import _team
from tests.profiling import captured

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
    one = write(tmp_path, b"", (0, 1))
    two = write(tmp_path, b"", (1, 2), suffix="_jax")
    assert one.name == "node_7.example.xplane.pb"
    assert two.name == "node_7.example_p1_jax.xplane.pb"
    assert two.read_bytes().endswith(b"node_7.example")
    assert len(list(tmp_path.iterdir())) == 2


def test_programs_of_one_name_are_all_written(tmp_path):
    step = captured.compiled_step("jax")
    captured.loop(step, 1)
    count = len(_running.programs())
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
