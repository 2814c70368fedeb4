"""Every damaged, cut off or missing piece is named, in one go."""

import subprocess
import sys

import pytest
from torch import nn

from spmd import checkpoint
from spmd.checkpoint import _verify
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._manifest import read_manifest


@pytest.fixture
def saved(tmp_path):
    checkpoint.save(tmp_path / "a", nn.Linear(3, 2), step=1, extra={"note": "x"})
    return tmp_path / "a", read_manifest(folder_at(tmp_path / "a"))


def test_a_good_one(saved):
    assert _verify.verify(saved[0]) == []


def test_every_flipped_byte_is_found_where_it_is(saved):
    path, manifest = saved
    everything = _verify.pieces(manifest)
    assert {"model.weight", "model.bias", "step", "extra.note"} <= dict(
        everything
    ).keys()
    for key, piece in everything:
        file = path / piece.file
        good = file.read_bytes()
        middle = piece.at + piece.size_bytes // 2
        file.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
        (line,) = _verify.verify(path)
        assert line == f"{key}, {piece.describe()}: damaged or cut off"
        file.write_bytes(good)


def test_cut_off_missing_and_no_checkpoint(saved, tmp_path):
    path, manifest = saved
    (name,) = manifest.files
    good = (path / name).read_bytes()
    (path / name).write_bytes(good[:-1])
    size = len(good)
    assert f"{name} has {size - 1} bytes, {size} were written" in _verify.verify(path)
    (path / name).unlink()
    assert _verify.verify(path) == [f"{name} is missing"]
    (path / "manifest.json").write_bytes(b"{")
    assert "manifest.json is damaged" in _verify.verify(path)[0]
    assert "holds no complete checkpoint" in _verify.verify(tmp_path / "b")[0]
    with pytest.raises(ValueError, match="strange"):
        _verify.verify("strange://a")


def test_it_needs_no_torch(saved):
    source = (
        "import sys; sys.modules['torch'] = None\n"
        "from spmd.checkpoint import verify\n"
        f"assert verify({str(saved[0])!r}) == []"
    )
    subprocess.run([sys.executable, "-c", source], check=True)
