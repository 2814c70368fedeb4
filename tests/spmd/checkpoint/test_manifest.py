"""The manifest: there and back, damaged, merged."""

import dataclasses
import json

import pytest

from spmd.checkpoint import CheckpointError
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._manifest import (
    Manifest,
    Piece,
    TensorEntry,
    merged,
    read_manifest,
)


def part(start=0, rows=2, whole=4, **options):
    piece = Piece((start, 0), (rows, 3), f"{start}.distcp", 0, 10, 7)
    entry = TensorEntry("float32", (whole, 3), (piece,))
    values = {
        "step": 3,
        "num_processes": 2,
        "token": "t",
        "tensors": {"model.a": entry},
        "objects": {"step": Piece((), (), "0.distcp", 10, 4, 9)},
        "files": {f"{start}.distcp": 14},
        "aliases": {"model.b": "model.a"},
        **options,
    }
    return Manifest(**values)


def test_there_and_back():
    one = part()
    assert Manifest.from_json(one.to_json(), where="x") == one
    assert one.num_bytes == 14
    assert one.find("model.b") is one.tensors["model.a"] and one.find("c") is None
    piece = one.tensors["model.a"].pieces[0]
    assert piece.describe() == "piece [0:2, 0:3] (bytes 0 to 10 of 0.distcp)"
    assert one.objects["step"].describe() == "bytes 10 to 14 of 0.distcp"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda text: text[:-5], "x is damaged: "),
        (lambda text: "[]", "x is damaged: "),
        (lambda text: "{}", "x is damaged: 'body'"),
        (lambda text: text.replace("0.distcp", "1.distcp"), "its checksum does not"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "version 2; this"),
    ],
)
def test_damage_is_found(change, match):
    with pytest.raises(CheckpointError, match=match):
        Manifest.from_json(change(part().to_json()), where="x")


def test_every_turned_character_is_found():
    text = part().to_json()
    for i in range(0, len(text), 7):
        turned = text[:i] + chr(ord(text[i]) ^ 1) + text[i + 1 :]
        with pytest.raises(CheckpointError):
            Manifest.from_json(turned, where="x")


def test_merging():
    whole = merged([part(), part(2)])
    assert [p.offset for p in whole.tensors["model.a"].pieces] == [(0, 0), (2, 0)]
    assert whole.files == {"0.distcp": 14, "2.distcp": 14}
    with pytest.raises(CheckpointError, match="12 elements, its pieces 6"):
        merged([part()])
    with pytest.raises(CheckpointError, match="12 elements, its pieces 12"):
        merged([part(), part()])  # the same piece twice
    with pytest.raises(CheckpointError, match=r"float32\[4, 3\] in process 0 and"):
        merged([part(), part(2, whole=5)])


def test_where_there_is_none(tmp_path):
    match = r"holds no complete checkpoint: .*\(it is empty or missing\)"
    with pytest.raises(CheckpointError, match=match):
        read_manifest(folder_at(tmp_path / "a"))
    (tmp_path / "x.distcp").touch()
    with pytest.raises(CheckpointError, match=r"\(it has x.distcp\)"):
        read_manifest(folder_at(tmp_path))
    assert json.loads(part().to_json())["format"] == "spmd-checkpoint"
    assert dataclasses.is_dataclass(Manifest)
