"""Checkpoints and files of torch.save as sources."""

import pytest
import torch
from torch import nn

from spmd import checkpoint
from spmd.checkpoint import CheckpointError
from spmd.checkpoint._source import CheckpointSource, TorchFileSource, source_at


def test_a_checkpoint(tmp_path):
    model = nn.Linear(3, 2)
    checkpoint.save(tmp_path / "a", model, step=4)
    source = source_at(tmp_path / "a")
    assert isinstance(source, CheckpointSource)
    assert source.kinds["model.weight"] == ("float32", (2, 3))
    assert torch.equal(source.whole("model.weight"), model.weight)
    assert source.object("step") == 4 and source.object("nothing") is None
    assert set(source.objects()) == {"step", "process.0.random"}


def test_a_file(tmp_path):
    model = nn.Linear(3, 2)
    torch.save({"model_state_dict": model.state_dict(), "epoch": 1}, tmp_path / "a.pt")
    source = source_at(tmp_path / "a.pt")
    assert isinstance(source, TorchFileSource)
    part = torch.empty(1, 2, dtype=torch.bfloat16)
    source.fill("model.weight", [(((1, 1), (1, 2)), part)], advance=lambda _: None)
    assert torch.equal(part, model.weight[1:, 1:].bfloat16())
    assert source.object("step") is None and list(source.objects()) == []


class Mine:
    pass


def test_files_that_are_none(tmp_path):
    torch.save({"x": 1}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="holds no state dict: a dict, not a mapping"):
        source_at(tmp_path / "a.pt")
    torch.save([1], tmp_path / "b.pt")
    with pytest.raises(ValueError, match="holds no state dict: a list"):
        source_at(tmp_path / "b.pt")
    torch.save(Mine(), tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="can be read without running code"):
        source_at(tmp_path / "c.pt")
    (tmp_path / "d.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match=r"is no file of torch.save"):
        source_at(tmp_path / "d.pt")
