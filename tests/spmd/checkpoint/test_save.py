"""What is written, and what is refused."""

import os

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import spmd
from spmd import Mesh, checkpoint
from spmd._torch_xla import seam
from spmd.checkpoint import CheckpointError, _save
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._manifest import read_manifest
from spmd.checkpoint._team import Team
from tests.spmd.checkpoints import Uneven, moments, on_cpu, same, split, with_moments

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not divide over", "ignore:torch.distributed is disabled"
)


def manifest(path):
    return read_manifest(folder_at(path))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return split(Uneven(), "copies")


def test_each_piece_is_written_once(model, tmp_path):
    """Replicas, tied weights and unpadded pieces, counted by hand."""
    optimizer = with_moments(model)
    checkpoint.save(tmp_path / "a", model, optimizer)
    found = manifest(tmp_path / "a")
    entry = found.tensors["model.embed.weight"]
    boxes = [(p.offset, p.shape) for p in entry.pieces]
    assert boxes == [((0, 0), (25, 13)), ((25, 0), (25, 13))]  # 4 copies of each
    assert found.aliases == {"model.head.weight": "model.embed.weight"}
    elements = sum(
        torch.Size(p.shape).numel() for e in found.tensors.values() for p in e.pieces
    )
    of_model = 50 * 13 + 50 + 1 + 9 * 3 + 3  # without the buffer that is not kept
    assert elements == of_model + 2 * (of_model - 3) + 4  # two moments, four counts
    size = (tmp_path / "a" / found.tensors["model.scale"].pieces[0].file).stat().st_size
    assert size == sum(found.files.values()) == found.num_bytes


def test_large_tensors_are_cut_into_pieces(tmp_path):
    model = nn.Linear(1024, 9 * 1024, bias=False)  # 36 MiB
    checkpoint.save(tmp_path / "a", model)
    pieces = manifest(tmp_path / "a").tensors["model.weight"].pieces
    assert [p.shape for p in pieces] == [(4096, 1024), (4096, 1024), (1024, 1024)]
    other = nn.Linear(1024, 9 * 1024, bias=False)
    checkpoint.load(tmp_path / "a", other)
    assert torch.equal(model.weight, other.weight)


def test_the_tools_of_torch_read_it(model, tmp_path):
    checkpoint.save(tmp_path / "a", model, with_moments(model), step=3)
    weights = on_cpu(model)
    target = {"model": {k: torch.zeros_like(v) for k, v in weights.items()}}
    dcp.load(target, checkpoint_id=str(tmp_path / "a"), no_dist=True)
    same(target["model"], weights)
    dcp_to_torch_save(tmp_path / "a", tmp_path / "a.pt")
    held = torch.load(tmp_path / "a.pt", weights_only=True)
    same(held["model"], weights)
    assert held["step"] == 3


TORCHAX = """
import sys, types, torch
import torch.distributed.checkpoint as dcp
from spmd import checkpoint
module = types.ModuleType("jax_device")  # what torchax registers
module.is_available = lambda: True
torch.utils.rename_privateuse1_backend("jax")
torch._register_device_module("jax", module)
model = torch.nn.Linear(4, 4)
try:
    dcp.save({"model": model.state_dict()}, checkpoint_id=sys.argv[1] + "/stock")
except BaseException as error:
    print("stock", "current_stream" in str(error))
checkpoint.save(sys.argv[1] + "/ours", model)
checkpoint.load(sys.argv[1] + "/ours", torch.nn.Linear(4, 4))
print("ours True")
"""


def test_torchax_does_not_disturb(run_script, tmp_path):
    done = run_script(TORCHAX, str(tmp_path))
    assert done.rc == 0, done.stderr
    assert done.stdout.split() == ["stock", "True", "ours", "True"]


def test_urls(model, tmp_path):
    optimizer = with_moments(model)
    url = f"memory://{tmp_path.name}/a"
    checkpoint.save(url, model, optimizer, step=5)
    other = split(Uneven(), "2x4")
    fresh = torch.optim.AdamW(other.parameters())
    assert checkpoint.load(url, other, fresh).step == 5
    same(on_cpu(other), on_cpu(model))
    same(moments(other, fresh), moments(model, optimizer))
    assert checkpoint.verify(url) == []
    with pytest.raises(ValueError, match="holds a checkpoint already"):
        checkpoint.save(url, model)
    checkpoint.save(url, model, step=6, overwrite=True)
    names = folder_at(url).names()
    assert len(names) == 3 and manifest(url).step == 6
    local = f"file://{tmp_path}/b"
    checkpoint.save(local, model)
    assert (tmp_path / "b" / "manifest.json").exists()


def test_a_path_with_something_else_is_refused(model, tmp_path):
    checkpoint.save(tmp_path / "a", model, step=1)
    with pytest.raises(ValueError, match="holds a checkpoint already"):
        checkpoint.save(tmp_path / "a", model)
    checkpoint.save(tmp_path / "a", model, step=2, overwrite=True)
    assert manifest(tmp_path / "a").step == 2
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match=r"other files \(thesis.txt\)"):
        checkpoint.save(tmp_path / "b", model, overwrite=True)
    (tmp_path / "c").mkdir()
    checkpoint.save(tmp_path / "c", model)
    assert checkpoint.verify(tmp_path / "c") == []


def test_what_cannot_be_saved_is_named(model, tmp_path):
    class Mine:
        pass

    with pytest.raises(TypeError, match=r"save: extra.thing holds more than numbers"):
        checkpoint.save(tmp_path / "a", model, extra={"thing": Mine()})
    hollow = nn.Linear(2, 2, device="meta")
    with pytest.raises(
        ValueError, match=r"model.weight \[2, 2\] is on the meta device"
    ):
        checkpoint.save(tmp_path / "a", hollow)
    assert os.listdir(tmp_path) == []


def test_what_is_recorded_and_not_run_is_in_it(model, tmp_path):
    """A save right after a lazy step, without a sync."""
    with torch.no_grad():
        model.scale.mul_(2)
        model.head.bias.add_(1)
    checkpoint.save(tmp_path / "a", model)
    other = Uneven()
    checkpoint.load(tmp_path / "a", other)
    assert other.scale.item() == 3.0
    same(on_cpu(other), on_cpu(model))


def test_the_background_does_not_see_later_changes(model, tmp_path, monkeypatch):
    optimizer = with_moments(model)
    weights, state = on_cpu(model), moments(model, optimizer)
    import threading

    go = threading.Event()
    real = _save.write_and_commit

    def late(*args):
        assert go.wait(30)
        real(*args)

    monkeypatch.setattr(_save, "write_and_commit", late)
    saving = checkpoint.save(tmp_path / "a", model, optimizer, asynchronous=True)
    assert not saving.done and "being written" in repr(saving)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
            for entry in optimizer.state[parameter].values():
                entry.add_(1)
    spmd._torch_xla.graph.settle(wait_for_it=True)
    assert not (tmp_path / "a").exists()
    assert saving.wait(0.01) is False
    with pytest.raises(CheckpointError, match="has not ended; wait for it"):
        checkpoint.save(tmp_path / "b", model, when_busy="refuse")
    go.set()
    checkpoint.wait()
    assert saving.done and "done" in repr(saving)
    other = Uneven()
    fresh = torch.optim.AdamW(other.parameters())
    checkpoint.load(tmp_path / "a", other, fresh)
    same(on_cpu(other), weights)
    same(moments(other, fresh), state)


def test_a_failed_background_save_is_told_once(model, tmp_path, monkeypatch):
    def fails(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("spmd.checkpoint._folder.os.fsync", fails)
        saving = checkpoint.save(tmp_path / "a", model, asynchronous=True)
        saving._thread.join()
    with pytest.raises(
        CheckpointError, match=r"asynchronous save to .*a failed.*No space"
    ):
        checkpoint.save(tmp_path / "b", model)
    assert os.listdir(tmp_path) == []
    checkpoint.save(tmp_path / "b", model)


def test_processes_write_what_they_hold(tmp_path, monkeypatch):
    """Two faked hosts, the first with devices 0 to 3; both write in one folder."""
    whole = split(Uneven(), "8")
    weights = on_cpu(whole)
    real, hosts, at = seam.local_shards, ((0, 1, 2, 3), (4, 5, 6, 7)), [0]

    def local_shards(tensor):
        return [shard for shard in real(tensor) if shard[0] in hosts[at[0]]]

    monkeypatch.setattr(seam, "local_shards", local_shards)
    monkeypatch.setattr(_save, "current_team", lambda: Team(at[0], 2))
    monkeypatch.setattr(_save, "shared_token", lambda team: "t1")
    monkeypatch.setattr(_save._background, "settle", lambda when_busy: None)
    at[0] = 1
    other = checkpoint.save(
        tmp_path / "a", whole, step=4, loader=Position(1), asynchronous=True
    )
    at[0] = 0
    checkpoint.save(tmp_path / "a", whole, step=4, loader=Position(0))
    assert other.wait()
    found = manifest(tmp_path / "a")
    assert len(found.files) == 2 and found.num_processes == 2
    files = {p.file for p in found.tensors["model.embed.weight"].pieces}
    assert files == set(found.files)
    assert len({p.file for p in found.tensors["model.count"].pieces}) == 1
    monkeypatch.undo()
    other = split(Uneven(), "4x2")
    loader = Position(None)
    checkpoint.load(tmp_path / "a", other, loader=loader)
    same(on_cpu(other), weights)
    assert loader.at == 0  # of process 0
    assert {k for k in found.objects if "loader" in k} == {
        "process.0.loader",
        "process.1.loader",
    }


class Position:
    """A loader that goes to positions by itself."""

    def __init__(self, at):
        self.at = at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_wrong_use(model, tmp_path):
    with pytest.raises(ValueError, match="when_busy='later'"):
        checkpoint.save(tmp_path / "a", model, when_busy="later")
    with pytest.raises(ValueError, match="nowhere://a"):
        checkpoint.save("nowhere://a", model)
    assert Mesh({"a": 8}).size == 8
