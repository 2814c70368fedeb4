"""A damaged, cut off or missing piece is named."""

import os

import pytest
import torch
from torch import nn

from spmd import checkpoint
from spmd.checkpoint import CheckpointError, verify
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._manifest import read_manifest
from spmd.checkpoint._read import fill_regions, read_object, read_piece


@pytest.fixture
def saved(tmp_path):
    """Path, and the piece of the second layer's weight."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    checkpoint.save(tmp_path / "a", model, step=1)
    found = read_manifest(folder_at(tmp_path / "a"))
    return tmp_path / "a", found.tensors["model.1.weight"].pieces[0], model


@pytest.mark.parametrize("byte", [0, 100, -1])
def test_any_turned_bit_is_found(saved, byte):
    path, piece, model = saved
    data = bytearray((path / piece.file).read_bytes())
    at = piece.at + byte % piece.size_bytes
    data[at] ^= 4
    (path / piece.file).write_bytes(data)
    match = r"model.1.weight, piece \[0:8, 0:8\] \(bytes .*: damaged, its checksum"
    with pytest.raises(CheckpointError, match=match):
        checkpoint.load(path, model)
    assert any("model.1.weight, piece" in line for line in verify(path))
    assert len(verify(path)) == 1


def test_a_cut_off_file(saved):
    path, piece, model = saved
    before = {k: v.clone() for k, v in model.state_dict().items()}
    os.truncate(path / piece.file, piece.at + 10)
    with torch.no_grad():
        model[0].weight.zero_()
    with pytest.raises(
        CheckpointError, match=f"{piece.file} has {piece.at + 10} bytes"
    ):
        checkpoint.load(path, model)
    assert model[0].weight.eq(0).all() and before  # nothing was changed
    folder = folder_at(path)
    with pytest.raises(CheckpointError, match="cut off; 10 of"):
        read_piece(folder, piece, "model.1.weight")
    lines = verify(path)
    assert f"{piece.file} has {piece.at + 10} bytes" in lines[0]
    assert "model.1.weight, piece [0:8, 0:8]" in lines[1]


def test_a_missing_file(saved):
    path, piece, model = saved
    (path / piece.file).unlink()
    with pytest.raises(CheckpointError, match=f"the file {piece.file} is missing"):
        checkpoint.load(path, model)
    with pytest.raises(CheckpointError, match=r"model.1.weight.*: the file is missing"):
        read_piece(folder_at(path), piece, "model.1.weight")
    assert verify(path) == [f"{piece.file} is missing"]


def test_a_file_that_cannot_be_read(saved, monkeypatch):
    path, piece, _ = saved
    folder = folder_at(path)

    def fails(*args, **options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(folder), "read", fails)
    with pytest.raises(CheckpointError, match=r"cannot be read \(Input/output error\)"):
        read_piece(folder, piece, "model.1.weight")


def test_objects(saved):
    path, _, _ = saved
    folder = folder_at(path)
    piece = read_manifest(folder).objects["step"]
    assert read_object(folder, piece, "step") == 1


def test_regions_of_any_form(saved):
    path, _, model = saved
    folder = folder_at(path)
    entry = read_manifest(folder).tensors["model.1.weight"]
    one, two = torch.empty(3, 8), torch.empty(8, 2)
    read = []
    regions = [(((5, 0), (3, 8)), one), (((0, 1), (8, 2)), two)]
    fill_regions(folder, entry, "model.1.weight", regions, advance=read.append)
    assert torch.equal(one, model[1].weight[5:]) and torch.equal(
        two, model[1].weight[:, 1:3]
    )
    assert read == [256]  # once for both
    with pytest.raises(CheckpointError, match="cover 8 of the 16 elements"):
        regions = [(((7, 0), (2, 8)), torch.empty(2, 8))]
        fill_regions(folder, entry, "x", regions, advance=read.append)
