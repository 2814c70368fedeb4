"""Checkpoints, torch.save files and safetensors folders into each other."""

import os

import pytest
import torch

from spmd import checkpoint
from spmd.checkpoint import CheckpointError, convert
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._manifest import read_manifest
from tests.spmd.checkpoints import Uneven, moments, on_cpu, same, with_moments


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = Uneven()
    optimizer = with_moments(model)
    path = tmp_path / "a"
    checkpoint.save(path, model, optimizer, step=9, extra={"note": "x"})
    return path, model, optimizer


def test_a_copy_has_everything(saved, tmp_path):
    path, model, optimizer = saved
    url = f"memory://{tmp_path.name}/copy"
    assert convert(path, url, to="checkpoint") == "checkpoint"
    other = Uneven()
    fresh = torch.optim.AdamW(other.parameters())
    back = checkpoint.load(url, other, fresh)
    same(on_cpu(other), on_cpu(model))
    same(moments(other, fresh), moments(model, optimizer))
    assert back.step == 9 and back.extra == {"note": "x"}
    one, two = read_manifest(folder_at(path)), read_manifest(folder_at(url))
    assert one.aliases == two.aliases and set(one.objects) == set(two.objects)


@pytest.mark.parametrize("name", ["b.pt", "b"])
def test_there_and_back(saved, name, tmp_path):
    path, model, _ = saved
    form = convert(path, tmp_path / name)
    assert form == ("torch" if name == "b.pt" else "safetensors")
    assert convert(tmp_path / name, tmp_path / "back") == "checkpoint"
    found = read_manifest(folder_at(tmp_path / "back"))
    assert found.aliases == {} and "model.head.weight" not in found.tensors
    other = Uneven()
    checkpoint.load(tmp_path / "back", other)  # tied: one name is enough
    same(on_cpu(other), on_cpu(model))
    assert sorted(os.listdir(tmp_path)) == ["a", name, "back"]


def test_wrong_use(saved, tmp_path):
    path, _, _ = saved
    with pytest.raises(ValueError, match="to='zip'; checkpoint, safetensors, torch"):
        convert(path, tmp_path / "b", to="zip")
    with pytest.raises(ValueError, match="has files in it"):
        convert(path, path)
    with pytest.raises(ValueError, match="exists already"):
        (tmp_path / "b.pt").touch()
        convert(path, tmp_path / "b.pt")
    with pytest.raises(ValueError, match="must be local"):
        convert(path, "memory://x.pt")
    with pytest.raises(ValueError, match="holds a checkpoint already"):
        convert(path, path, to="checkpoint")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        convert(tmp_path / "none", tmp_path / "c")


def test_a_failed_one_leaves_nothing(saved, tmp_path, monkeypatch):
    path, _, _ = saved

    def fails(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("spmd.checkpoint._convert.write_files", fails)
    with pytest.raises(CheckpointError, match=r"could not be written \(No space left"):
        convert(path, tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]
