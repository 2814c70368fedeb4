"""Pieces in a file, and what can be packed."""

import io
import zlib

import pytest
import torch

from spmd.checkpoint import _write
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._write import Box, packed, write_part


def part(folder, boxes, objects=None):
    sizes = []
    (folder.root).mkdir(exist_ok=True)
    found = write_part(folder, "f", boxes, objects or {}, advance=sizes.append)
    return found, sizes


def test_pieces_follow_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(_write, "MAX_PIECE_BYTES", 40)
    folder = folder_at(tmp_path / "a")
    data = torch.arange(21.0).reshape(7, 3)
    boxes = [
        Box("m", (9, 6), (2, 3), data),
        Box("s", (), (), torch.tensor(5)),
        Box("e", (0, 3), (0, 0), torch.empty(0, 3)),
        Box("t", (3,), (0,), torch.arange(9)[::3].conj()),
    ]
    found, sizes = part(folder, boxes, {"o": packed({"x": 1}, "o")})
    pieces = found.tensors["m"].pieces
    assert [(p.offset, p.shape) for p in pieces] == [
        ((2, 3), (3, 3)),
        ((5, 3), (3, 3)),
        ((8, 3), (1, 3)),
    ]
    assert found.tensors["e"].pieces == () and found.tensors["s"].dtype == "int64"
    assert sum(sizes) == 84 + 8 + 24
    everything = [
        *found.objects.values(),
        *(p for e in found.tensors.values() for p in e.pieces),
    ]
    at, content = 0, (tmp_path / "a" / "f").read_bytes()
    for piece in everything:
        assert piece.at == at
        raw = content[piece.at : piece.at + piece.size_bytes]
        assert zlib.crc32(raw) == piece.crc32
        torch.load(io.BytesIO(raw), weights_only=True)
        at += piece.size_bytes
    assert at == found.files["f"] == len(content)


def test_only_the_part_is_written(tmp_path):
    """`torch.save` writes all of a storage."""
    big = torch.zeros(1000, 1000)
    found, _ = part(
        folder_at(tmp_path / "a"), [Box("m", (1000, 1000), (0, 0), big[:2])]
    )
    assert found.files["f"] < 12_000


def test_what_cannot_be_packed():
    with pytest.raises(TypeError, match="save: it holds more than numbers"):
        packed({"x": object()}, "it")
    with pytest.raises(TypeError, match="save: it holds more than numbers"):
        packed(lambda: None, "it")
    assert packed([1, 2.0, "x", None, (True, {"a": torch.ones(1)})], "it")
