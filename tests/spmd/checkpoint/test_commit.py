"""Complete or absent: killed processes, full disks, several processes."""

import dataclasses
import errno
import os
import threading

import pytest
import torch

from spmd.checkpoint import CheckpointError, _commit, _folder, verify
from spmd.checkpoint._commit import Commit, write_and_commit
from spmd.checkpoint._folder import LocalFolder, folder_at
from spmd.checkpoint._manifest import read_manifest
from spmd.checkpoint._source import CheckpointSource
from spmd.checkpoint._team import Team
from spmd.checkpoint._write import Box, packed, write_part

KILLED = """
import os, random, signal, sys
from pathlib import Path

import torch

from spmd.checkpoint import _folder, verify
from spmd.checkpoint._commit import Commit, write_and_commit
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._manifest import read_manifest
from spmd.checkpoint._source import CheckpointSource
from spmd.checkpoint._team import Team
from spmd.checkpoint._write import Box, packed, write_part

torch.set_num_threads(1)
root = Path(sys.argv[1])

def save(path, number):
    def boxes():
        for i in range(4):
            data = torch.full((64, 64), float(number))
            yield Box(f"model.{i}", (128, 64), (0, 0), data)
            yield Box(f"model.{i}", (128, 64), (64, 0), data)
    def write(folder, file):
        objects = {"step": packed(number, "step")}
        return write_part(folder, file, boxes(), objects, advance=lambda _: None)
    job = Commit(folder_at(path), f"{number:04x}", Team(), number, {})
    write_and_commit(job, write)

class Die:
    '''Every system call that changes the disk counts; the last one is cut short.'''
    def __init__(self, at):
        self.left = at
    def tick(self, cut=None):
        self.left -= 1
        if self.left == 0:
            if cut:
                cut()
            os.kill(os.getpid(), signal.SIGKILL)

def watch(die):
    real = _folder.os
    class Watched:
        def __getattr__(self, name):
            return getattr(real, name)
    for name in ("fsync", "replace", "rename"):
        def call(*args, _real=getattr(real, name)):
            die.tick()
            _real(*args)
            die.tick()
        setattr(Watched, name, staticmethod(call))
    _folder.os = Watched()
    create = _folder.LocalFolder.create
    from contextlib import contextmanager
    @contextmanager
    def created(self, name):
        die.tick()
        with create(self, name) as stream:
            class Cut:
                def write(self, data):
                    view = memoryview(data).cast("B")
                    half = len(view) // 2
                    die.tick(lambda: (stream.write(view[:half]), stream.flush()))
                    return stream.write(view)
            yield Cut()
    _folder.LocalFolder.create = created

def child(path, number, at):
    pid = os.fork()
    if pid == 0:
        die = Die(at)
        watch(die)
        save(path, number)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def points(path):
    # How many there are; some anywhere, as many where it is put in place.
    out, into = os.pipe()
    if os.fork() == 0:
        die = Die(0)
        watch(die)
        save(path, 0)
        os.write(into, str(-die.left).encode())
        os._exit(0)
    os.wait()
    total = int(os.read(out, 20))
    assert total > 100, total
    draw, last = random.Random(total), range(total - 29, total + 1)
    return draw.sample(range(1, total - 29), 13) + draw.sample(last, 12)

save(root / "one", 1)
chosen = list(zip(points(root / "fresh"), points(root / "one")))
killed = 0
ends = {"old": 0, "new": 0, "absent": 0}
for i, (at, at_old) in enumerate(chosen):
    number = i + 2
    # A new checkpoint beside the old one, and one in its place.
    fresh = root / f"fresh{i}"
    killed += child(fresh, number, at) == -signal.SIGKILL
    if (fresh / "manifest.json").exists():
        assert verify(fresh) == [], (at, verify(fresh))
        ends["new"] += 1
    else:
        assert not fresh.exists(), at
        ends["absent"] += 1
    before = read_manifest(folder_at(root / "one")).step
    killed += child(root / "one", number, at_old) == -signal.SIGKILL
    after = CheckpointSource(folder_at(root / "one"))
    assert after.manifest.step in (before, number)
    ends["old" if after.manifest.step == before else "new"] += 1
    assert verify(root / "one") == []
    for key in after.kinds:
        value = after.whole(key)
        assert torch.equal(value, torch.full_like(value, float(after.manifest.step)))
save(root / "one", 1000)
assert len(list((root / "one").iterdir())) == 3, list((root / "one").iterdir())
print(killed, ends)
"""


def test_killed_at_50_points_the_previous_one_is_there(run_script, tmp_path):
    """Half of them while a new one is written, half while an old one is replaced."""
    done = run_script(KILLED, str(tmp_path / "root"))
    assert done.rc == 0, done.stderr
    killed, ends = done.stdout.split(" ", 1)
    assert int(killed) == 50
    assert all(count > 0 for count in eval(ends).values()), ends


def job(path, **options) -> Commit:
    values = {"token": "t1", "team": Team(), "step": 1, "aliases": {}, **options}
    return Commit(folder_at(path), **values)


def writer(number=1.0, rows=(0, 4), whole=4):
    def write(folder, file):
        def boxes():
            start, stop = rows
            data = torch.full((stop - start, 2), number)
            yield Box("model.a", (whole, 2), (start, 0), data)

        objects = {"step": packed(1, "step")}
        return write_part(folder, file, boxes(), objects, advance=lambda _: None)

    return write


@pytest.mark.parametrize("broken", ["write", "fsync", "rename", "replace"])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_full_disk_keeps_the_old_one(broken, replaces, tmp_path, monkeypatch):
    if replaces:
        write_and_commit(job(tmp_path / "a"), writer(1.0))
        before = sorted(os.listdir(tmp_path / "a"))

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    def write(folder, file):
        writer(2.0)(folder, file)
        raise OSError(errno.ENOSPC, "No space left on device")

    if broken != "write":
        monkeypatch.setattr(_folder.os, broken, full)
    if (broken, replaces) == ("rename", True):
        pytest.skip("nothing is renamed as a folder then")
    with pytest.raises(CheckpointError, match=r"No space left on device.*unchanged"):
        again = job(tmp_path / "a", token="t2", step=2)
        write_and_commit(again, write if broken == "write" else writer(2.0))
    monkeypatch.undo()
    if not replaces:
        assert os.listdir(tmp_path) == []
        return
    assert sorted(os.listdir(tmp_path / "a")) == before
    assert verify(tmp_path / "a") == []
    assert read_manifest(folder_at(tmp_path / "a")).step == 1


def test_nothing_of_the_old_one_is_left(tmp_path):
    write_and_commit(job(tmp_path / "a"), writer(1.0))
    (tmp_path / "a" / "__0_killed.distcp").write_bytes(b"x")
    (tmp_path / "a" / "mine.txt").write_text("x")
    write_and_commit(job(tmp_path / "a", token="t2"), writer(2.0))
    assert sorted(os.listdir(tmp_path / "a")) == [
        ".metadata",
        "__0_t2.distcp",
        "manifest.json",
        "mine.txt",
    ]
    source = CheckpointSource(folder_at(tmp_path / "a"))
    assert torch.equal(source.whole("model.a"), torch.full((4, 2), 2.0))


def test_another_error_leaves_nothing_and_comes_through(tmp_path):
    def write(folder, file):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write_and_commit(job(tmp_path / "a"), write)
    assert os.listdir(tmp_path) == []


def in_threads(path, writers, **options):
    """Each process of a faked run in a thread; errors by process."""
    errors = {}

    def run(index, write):
        team = Team(index, len(writers))
        try:
            write_and_commit(job(path, team=team, **options), write)
        except CheckpointError as error:
            errors[index] = str(error)

    threads = [threading.Thread(target=run, args=(i, w)) for i, w in enumerate(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("replaces", [False, True])
def test_processes_write_their_own_files(replaces, tmp_path):
    if replaces:
        write_and_commit(job(tmp_path / "a", token="t0"), writer())
    writers = [writer(1.0, (0, 2)), writer(2.0, (2, 3)), writer(3.0, (3, 4))]
    assert in_threads(tmp_path / "a", writers) == {}
    files = sorted(os.listdir(tmp_path / "a"))
    assert files == [
        ".metadata",
        *(f"__{i}_t1.distcp" for i in range(3)),
        "manifest.json",
    ]
    source = CheckpointSource(folder_at(tmp_path / "a"))
    assert source.whole("model.a")[:, 0].tolist() == [1.0, 1.0, 2.0, 3.0]
    assert source.num_processes == 3
    assert verify(tmp_path / "a") == []
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("broken", [0, 1])
def test_a_process_that_fails_is_named_to_the_others(broken, tmp_path):
    def fails(folder, file):
        raise OSError(errno.ENOSPC, "No space left on device")

    writers = [writer(1.0, (0, 2)), writer(2.0, (2, 4))]
    writers[broken] = fails
    errors = in_threads(tmp_path / "a", writers)
    assert "could not be written (No space left" in errors[broken]
    assert f"process {broken} could not write its part" in errors[1 - broken]
    assert not (tmp_path / "a").exists()


def test_a_process_that_does_not_come_is_named(tmp_path):
    late = job(tmp_path / "a", team=Team(0, 2), timeout_s=0.1)
    with pytest.raises(CheckpointError, match="process 1 has not written its part"):
        write_and_commit(late, writer(1.0, (0, 2)))
    late = dataclasses.replace(late, team=Team(1, 2))
    with pytest.raises(CheckpointError, match="process 0 could not write its part"):
        write_and_commit(late, writer(1.0, (0, 2)))
    late = dataclasses.replace(late, token="t3")
    with pytest.raises(CheckpointError, match="process 0 has not put the checkpoint"):
        write_and_commit(late, writer(1.0, (0, 2)))
    assert _commit.TIMEOUT_S > 60


def test_pieces_that_do_not_cover_a_tensor_are_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"model.a \[4, 2\] has 8 elements"):
        write_and_commit(job(tmp_path / "a"), writer(1.0, (0, 3)))
    errors = in_threads(tmp_path / "b", [writer(), writer(2.0, (0, 4), whole=5)])
    assert "in process 0 and float32[5, 2] in process 1" in errors[0]
    assert isinstance(folder_at(tmp_path), LocalFolder)
