"""Our reader and writer of safetensors, against the library itself."""

import json

import pytest
import torch

from spmd.checkpoint import CheckpointError
from spmd.checkpoint import _safetensors as ours
from spmd.checkpoint._folder import folder_at

library = pytest.importorskip("safetensors.torch")

TENSORS = {
    "b.weight": torch.arange(12.0).reshape(3, 4).bfloat16(),
    "a": torch.tensor(3),
    "empty": torch.empty(0, 2),
    "flags": torch.tensor([True, False, True]),
    "wide": torch.randn(5, 2, 3, dtype=torch.float64),
}


def kinds(tensors=TENSORS):
    return {
        k: (str(v.dtype).removeprefix("torch."), tuple(v.shape))
        for k, v in tensors.items()
    }


def write(path, **options):
    files, index = ours.plan_files(kinds(), **options)
    path.mkdir()
    done = []
    ours.write_files(folder_at(path), files, TENSORS.__getitem__, advance=done.append)
    assert sum(done) == sum(t.nbytes for t in TENSORS.values())
    if index is not None:
        (path / ours.INDEX).write_bytes(index)
    return files


def test_the_library_reads_what_we_write(tmp_path):
    write(tmp_path / "a")
    found = library.load_file(tmp_path / "a" / "model.safetensors")
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[k], v) for k, v in TENSORS.items())


@pytest.mark.parametrize("where", ["local", "memory"])
def test_we_read_what_the_library_writes(where, tmp_path):
    library.save_file(TENSORS, tmp_path / "model.safetensors")
    folder = folder_at(tmp_path)
    if where == "memory":
        folder = folder_at(f"memory://{tmp_path.name}/st")
        data = (tmp_path / "model.safetensors").read_bytes()
        folder.replace("model.safetensors", data)
    source = ours.SafetensorsSource(folder)
    assert source.kinds == kinds()
    assert all(torch.equal(source.whole(k), v) for k, v in TENSORS.items())
    part = torch.empty(2, 1, 2, dtype=torch.float64)
    source.fill("wide", [(((3, 1, 0), (2, 1, 2)), part)], advance=lambda _: None)
    assert torch.equal(part, TENSORS["wide"][3:5, 1:2, :2])
    assert source.object("x") is None and list(source.objects()) == []


def test_several_files(tmp_path):
    files = write(tmp_path / "a", max_bytes=30)
    assert [f.tensors for f in files] == [
        ("b.weight",),
        ("a", "empty", "flags"),
        ("wide",),
    ]
    assert files[0].name == "model-00001-of-00003.safetensors"
    index = json.loads((tmp_path / "a" / ours.INDEX).read_text())
    assert index["metadata"] == {"total_parameters": 46, "total_size": 275}
    assert index["weight_map"]["wide"] == "model-00003-of-00003.safetensors"
    source = ours.SafetensorsSource(folder_at(tmp_path / "a"))
    assert all(torch.equal(source.whole(k), v) for k, v in TENSORS.items())
    (tmp_path / "a" / files[1].name).unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00003.* is missing"):
        ours.SafetensorsSource(folder_at(tmp_path / "a"))


def test_damaged_files(tmp_path):
    write(tmp_path / "a")
    file = tmp_path / "a" / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=f"cut off: it has {len(data) - 1} bytes"):
        ours.SafetensorsSource(folder_at(tmp_path / "a"))
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(CheckpointError, match="is damaged: a header of"):
        ours.SafetensorsSource(folder_at(tmp_path / "a"))
    file.write_bytes(b"\x02" + bytes(7) + b"{{" + bytes(9))
    with pytest.raises(CheckpointError, match="is damaged: Expecting"):
        ours.SafetensorsSource(folder_at(tmp_path / "a"))
    (tmp_path / "a" / ours.INDEX).write_text("{}")
    with pytest.raises(CheckpointError, match=r"index.json is damaged: 'weight_map'"):
        ours.SafetensorsSource(folder_at(tmp_path / "a"))


def test_a_dtype_that_there_is_not():
    with pytest.raises(ValueError, match="x is complex128, which safetensors does not"):
        ours.plan_files({"x": ("complex128", (2,))})


def test_cut_off_while_it_is_read(tmp_path, monkeypatch):
    folder = folder_at(f"memory://{tmp_path.name}/cut")
    library.save_file(TENSORS, tmp_path / "m.safetensors")
    folder.replace("m.safetensors", (tmp_path / "m.safetensors").read_bytes())
    source = ours.SafetensorsSource(folder)
    monkeypatch.setattr(type(folder), "read", lambda *a, **k: b"xx")
    with pytest.raises(CheckpointError, match=r"m.safetensors is cut off within wide"):
        source.whole("wide")
