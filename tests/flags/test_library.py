import pytest

from flags._library import LIBRARIES, NotInstalledError, installed, library


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("torch-xla", "torch_xla"),
        ("jaxlib", "jaxlib"),
        ("jax-cuda12-plugin", "cuda"),
        ("jax_cuda12_pjrt", "cuda"),
        ("LIBTPU", "libtpu"),
    ],
)
def test_names(name, found):
    assert library(name).name == found


def test_unknown_name():
    with pytest.raises(ValueError, match="unknown library 'tf'; there are torch_xla,"):
        library("tf")


def test_torch_xla_and_jaxlib_are_there():
    names = [entry.name for entry in installed()]
    assert names[:2] == ["torch_xla", "jaxlib"]
    path, version = LIBRARIES["torch_xla"].find()
    assert path.name.startswith("_XLAC.")
    assert version.startswith("2.9")


def test_only_named_ones():
    assert [entry.name for entry in installed(["jaxlib"])] == ["jaxlib"]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("libtpu", r"libtpu is not installed; run pip install 'xla-spmd\[tpu\]'"),
        ("cuda", r"cuda is not installed; run pip install 'xla-spmd\[gpu\]'"),
    ],
)
def test_not_installed(monkeypatch, name, command):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr("flags._library._shared_object", lambda *_: None)
    assert not LIBRARIES[name].installed
    with pytest.raises(NotInstalledError, match=command):
        installed([name])


def test_path_of_libtpu(monkeypatch, tmp_path):
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))
    path, version = LIBRARIES["libtpu"].find()
    assert path == tmp_path / "libtpu.so"
    assert str(tmp_path) in version
