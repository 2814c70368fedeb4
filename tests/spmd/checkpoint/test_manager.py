"""The newest are kept, the newest good one is found."""

import os

import pytest
import torch
from torch import nn

from spmd import checkpoint
from spmd.checkpoint import CheckpointError, Manager, _manager
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._manifest import read_manifest


class Number(nn.Module):
    """A model with one number."""

    def __init__(self, value=0.0):
        super().__init__()
        self.value = nn.Parameter(torch.full((3,), float(value)))


def filled(folder, steps=(1, 2, 3), **options):
    manager = Manager(folder, **options)
    for step in steps:
        assert manager.save(step, Number(step))
    return manager


def damage(folder, step):
    """Turn one bit of a piece."""
    path = folder / f"step-{step:08d}"
    piece = read_manifest(folder_at(path)).tensors["model.value"].pieces[0]
    data = bytearray((path / piece.file).read_bytes())
    data[piece.at + piece.size_bytes // 2] ^= 1
    (path / piece.file).write_bytes(data)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_keeps_the_newest(asynchronous, tmp_path):
    with Manager(tmp_path, keep=2, every=10, asynchronous=asynchronous) as manager:
        saved = [step for step in range(1, 51) if manager.save(step, Number(step))]
        assert manager.save(51, Number(51), force=True)
    assert saved == [10, 20, 30, 40, 50]
    assert manager.steps() == [50, 51]
    assert sorted(os.listdir(tmp_path)) == ["step-00000050", "step-00000051"]
    assert repr(manager) == f"Manager('{tmp_path}', keep=2, every=10)"


def test_keeps_all(tmp_path):
    assert filled(tmp_path, keep=None).steps() == [1, 2, 3]


def test_restores_the_newest(tmp_path):
    model = Number()
    manager = Manager(tmp_path)
    assert manager.restore(model) is None
    filled(tmp_path)
    back = manager.restore(model)
    assert back.step == 3 and back.path == manager.path(3)
    assert model.value.tolist() == [3.0] * 3


def test_falls_back_and_says_so(tmp_path):
    manager = filled(tmp_path)
    damage(tmp_path, 3)
    os.truncate(
        tmp_path / "step-00000002" / _only_data(tmp_path / "step-00000002"), 100
    )
    model = Number()
    with pytest.warns(UserWarning, match="checkpoint of step") as caught:
        assert manager.restore(model).step == 1
    texts = [str(w.message) for w in caught]
    assert len(texts) == 2
    assert "step 3 cannot be used" in texts[0]
    assert "model.value, piece [0:3]" in texts[0] and "checksum" in texts[0]
    assert "step 2 cannot be used" in texts[1] and "has 100 bytes" in texts[1]
    assert model.value.tolist() == [1.0] * 3
    assert manager.save(4, Number(4))  # and goes on


def _only_data(folder):
    (name,) = (n for n in os.listdir(folder) if n.endswith(".distcp"))
    return name


@pytest.mark.filterwarnings("ignore:Manager. the checkpoint")
def test_all_damaged(tmp_path):
    manager = filled(tmp_path, (1, 2))
    damage(tmp_path, 1)
    damage(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used: .*;"):
        manager.restore(Number())


def test_one_that_does_not_fit_is_no_reason_to_fall_back(tmp_path):
    manager = filled(tmp_path)
    with pytest.raises(ValueError, match="does not fit the model"):
        manager.restore(nn.Linear(2, 2))


def test_what_a_killed_save_left_goes(tmp_path):
    (tmp_path / "step-00000007.writing-0123").mkdir()
    (tmp_path / "mine").mkdir()
    manager = filled(tmp_path)
    assert sorted(os.listdir(tmp_path))[0] == "mine"
    assert len(os.listdir(tmp_path)) == 4
    (tmp_path / "step-00000009").mkdir()  # without a manifest
    assert manager.steps() == [1, 2, 3]


def test_saves_again_over_a_step(tmp_path):
    manager = filled(tmp_path, (1, 2))
    manager.save(2, Number(22))
    model = Number()
    manager.restore(model)
    assert model.value.tolist() == [22.0] * 3


def test_on_a_url(tmp_path):
    url = f"memory://{tmp_path.name}/run"
    manager = filled(url, keep=1)
    assert manager.steps() == [3]
    assert folder_at(url).names() == ["step-00000003"]
    assert manager.restore(Number()).step == 3


def test_processes_agree(tmp_path, monkeypatch):
    """Process 0 finds no damage, process 1 does: both take the one before."""
    manager = filled(tmp_path)
    answers = iter([False, True])
    monkeypatch.setattr(_manager, "all_agree", lambda team, good: next(answers))
    with pytest.warns(UserWarning, match="step 3.*another process failed"):
        assert manager.restore(Number()).step == 2


def test_steps_are_those_that_process_0_sees(tmp_path, monkeypatch):
    manager = filled(tmp_path)
    seen = iter([2, 1, 2])  # a number of steps, and the steps
    team = _manager.current_team()
    monkeypatch.setattr(_manager, "current_team", lambda: type(team)(1, 2))
    monkeypatch.setattr(_manager, "of_process_zero", lambda team, number: next(seen))
    assert manager._agreed_steps() == [1, 2]


@pytest.mark.parametrize("options", [{"keep": 0}, {"every": 0}])
def test_wrong_use(options, tmp_path):
    with pytest.raises(ValueError, match="=0; at least 1 is needed"):
        Manager(tmp_path, **options)


def test_an_error_in_the_background_comes_with_the_next_save(tmp_path, monkeypatch):
    manager = Manager(tmp_path, asynchronous=True)

    def fails(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("spmd.checkpoint._folder.os.rename", fails)
        manager.save(1, Number(1))
        checkpoint._background._last._thread.join()
    with pytest.raises(CheckpointError, match=r"asynchronous save.*No space left"):
        manager.save(2, Number(2))
    manager.save(3, Number(3))
    manager.wait()
    assert manager.steps() == [3]
