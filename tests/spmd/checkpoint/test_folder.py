"""Folders on a disk and behind a URL behave alike."""

import os

import pytest

from spmd.checkpoint._folder import LocalFolder, RemoteFolder, folder_at


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    if request.param == "local":
        return folder_at(tmp_path / "a")
    return folder_at(f"memory://{tmp_path.name}/a")


def test_files(folder):
    assert folder.names() == [] and not folder.exists("x")
    place = folder.begin("t1")
    with place.create("x") as stream:
        stream.write(b"0123456789")
    place.replace("y", b"small")
    place.replace("y", b"smaller")
    folder.publish(place)
    assert folder.names() == ["x", "y"]
    assert folder.size("x") == 10
    assert folder.read("x") == b"0123456789"
    assert folder.read("x", at=3, size=4) == b"3456"
    assert folder.read("x", at=8, size=40) == b"89"
    assert folder.read("x", at=10, size=4) == b""
    assert folder.read("y") == b"smaller"
    inner = folder.inside("b")
    inner.begin("t2").replace("z", b"1")
    inner.publish(inner.begin("t2"))
    assert folder.names() == ["b", "x", "y"]
    folder.remove("b", "x", "not there")
    assert folder.names() == ["y"]
    with pytest.raises(FileNotFoundError):
        folder.read("x")


def test_a_new_local_folder_is_written_beside(tmp_path):
    folder = folder_at(tmp_path / "deep" / "a")
    place = folder.begin("t1")
    assert place.url == str(tmp_path / "deep" / "a.writing-t1")
    assert not (tmp_path / "deep" / "a").exists()
    folder.publish(place)
    assert folder.begin("t2") is folder
    assert os.listdir(tmp_path / "deep") == ["a"]


def test_paths_and_urls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder_at("a").url == str(tmp_path / "a")
    assert folder_at(f"file://{tmp_path}/a").url == str(tmp_path / "a")
    assert isinstance(folder_at(tmp_path), LocalFolder)
    assert isinstance(folder_at("memory://x"), RemoteFolder)
    assert str(folder_at("~/a").root) == os.path.expanduser("~/a")
    with pytest.raises(ValueError, match=r"nowhere://a: .*nowhere"):
        folder_at("nowhere://a")
