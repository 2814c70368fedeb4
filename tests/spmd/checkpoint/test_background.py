"""Errors of background saves come out; the end of the process waits."""

import pytest

from spmd.checkpoint import CheckpointError, _background

SCRIPT = """
import os, sys, time, torch
from spmd import checkpoint
from spmd.checkpoint import _folder, _save

real = _save.write_and_commit

def late(*args):
    time.sleep(0.2)
    if mode == "fail":
        raise OSError(28, "No space left on device")
    real(*args)

_save.write_and_commit = late
torch.set_num_threads(1)
for mode in ("fine", "fail", "status"):
    child = os.fork()
    if child == 0:
        for stream, handle in (("out", 1), ("err", 2)):
            file = os.open(f"{mode}.{stream}", os.O_CREAT | os.O_WRONLY)
            os.dup2(file, handle)
        checkpoint.save(mode, torch.nn.Linear(2, 2), asynchronous=True)
        print("trained")
        sys.exit(3 if mode == "status" else 0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_the_end_of_the_process_waits_and_tells(run_script, tmp_path):
    done = run_script(SCRIPT)
    assert done.rc == 0, done.stderr
    assert done.stdout.split() == ["0", "120", "3"]
    for mode in ("fine", "status"):
        assert (tmp_path / mode / "manifest.json").exists()
        assert (tmp_path / f"{mode}.err").read_text() == ""
        assert (tmp_path / f"{mode}.out").read_text() == "trained\n"
    assert (tmp_path / "fail.out").read_text() == "trained\n"
    told = (tmp_path / "fail.err").read_text()
    assert "spmd.checkpoint: the asynchronous save to " in told
    assert "No space left on device" in told


def test_an_error_is_raised_once():
    def fails():
        raise OSError(5, "Input/output error")

    saving = _background.begin("here", fails)
    with pytest.raises(CheckpointError, match=r"save to here failed.*Input/output"):
        saving.wait()
    assert saving.wait() and saving.done
    _background.settle("refuse")


def test_busy():
    import threading

    go = threading.Event()
    saving = _background.begin("here", lambda: go.wait(10))
    with pytest.raises(CheckpointError, match="save to here has not ended"):
        _background.settle("refuse")
    with pytest.raises(ValueError, match="when_busy='no'; 'wait' or 'refuse'"):
        _background.settle("no")
    go.set()
    _background.wait()
    assert saving.done
