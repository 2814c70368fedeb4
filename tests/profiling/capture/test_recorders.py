"""Who records, and what a recording holds; spaces are written by hand."""

import sys
from types import SimpleNamespace

import pytest

from profiling._capture import recorders as module
from profiling._capture.recorders import device_work, recorders, with_host


def field(number: int, value: bytes) -> bytes:
    """A length-delimited field."""
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


def plane(name: str, *stat_names: str, lines: int = 1) -> bytes:
    stats = b"".join(
        field(5, b"\x08\x01" + field(2, b"\x08\x01" + field(2, stat.encode())))
        for stat in stat_names
    )
    return field(1, field(2, name.encode()) + field(3, b"\x08\x07") * lines + stats)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (b"", 0),
        (plane("/host:CPU", "step_num"), 0),
        (plane("/host:CPU", "step_num", "hlo_op"), 2),
        (plane("/host:metadata", "hlo_op"), 0),
        (plane("/device:TPU:0"), 2),
        (plane("/device:GPU:0", lines=3), 6),
        (plane("/device:TPU:0", lines=0), 0),
        (plane("/device:CUSTOM:Megascale Trace"), 0),
        (plane("/host:CPU") + plane("/device:TPU:0") + plane("/device:TPU:1"), 4),
    ],
    ids=[
        "empty",
        "host only",
        "cpu devices",
        "metadata",
        "tpu",
        "gpu",
        "idle",
        "custom",
        "two devices",
    ],
)
def test_what_devices_did(space, expected):
    assert device_work(space) == expected


def test_a_recording_says_where_it_was_made():
    space = plane("/host:CPU")
    named = with_host(space, "node-7")
    assert named == space + field(4, b"node-7")
    assert with_host(named, "other") == named


def test_the_runtime_in_use_comes_first(monkeypatch):
    assert [r.name for r in recorders()] == ["torch_xla", "jax"]
    on_jax = SimpleNamespace(runtime=lambda: "jax")
    monkeypatch.setitem(sys.modules, "spmd._runtime", on_jax)
    assert [r.name for r in recorders()] == ["jax", "torch_xla"]


def test_without_either_there_is_nothing_to_record(monkeypatch):
    monkeypatch.setattr(module.sys, "modules", {})
    with pytest.raises(RuntimeError, match="neither jax nor torch_xla is imported"):
        recorders()


@pytest.mark.parametrize("name", ["torch_xla", "jax"])
def test_both_seams_answer_alike(name):
    (seam,) = (r.seam for r in recorders() if r.name == name)
    seam.start_runtime()
    assert seam.is_up() and seam.team() == (0, 1)
    assert not seam.is_recording()
    session, second = seam.Session(), seam.Session()
    assert seam.is_recording()
    seam.wait()
    with pytest.raises(RuntimeError, match="Another profiling session active"):
        second.stop()
    assert b"/host:CPU" in session.stop() or not seam.is_recording()
