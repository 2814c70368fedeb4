import click
import pytest

from profiling._cli_values import flags_from, mesh_from, targets_from
from profiling._target import Target


def test_targets():
    found = targets_from(["h100:2x8", "cpu:8", "h100:2x8"], None)
    assert found == (Target.parse("h100:2x8"), Target.parse("cpu:8"))


def test_own_targets(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("mine: {base: h100, about: Mine}", encoding="utf-8")
    assert targets_from(["mine:1x4"], file)[0].num_devices == 4
    with pytest.raises(click.UsageError, match=r"none\.yaml: No such file"):
        targets_from(["mine:1x4"], tmp_path / "none.yaml")


def test_no_target():
    with pytest.raises(click.UsageError, match="did you mean 'h100'"):
        targets_from(["h10:1x8"], None)


def test_flags():
    found = flags_from(["xla_a=1", "--xla_b=x=y", "xla_c", "xla_d="])
    assert found == {"xla_a": "1", "xla_b": "x=y", "xla_c": True, "xla_d": ""}


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        (["=3"], "--flag '=3': write name=value"),
        (["a b=3"], "--flag 'a b=3': write name=value"),
        (["xla_a=1", "--xla_a=2"], "xla_a is given twice"),
    ],
)
def test_no_flags(texts, match):
    with pytest.raises(click.UsageError, match=match):
        flags_from(texts)


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        (None, None),
        ("fsdp=8", {"fsdp": 8}),
        (" replica = 2, fsdp=-1", {"replica": 2, "fsdp": -1}),
    ],
)
def test_mesh(text, axes):
    assert mesh_from(text) == axes


@pytest.mark.parametrize("text", ["", "fsdp", "fsdp=0", "fsdp=4;tensor=2", "fsdp=x"])
def test_no_mesh(text):
    with pytest.raises(click.UsageError, match="is no axis with a size; write the"):
        mesh_from(text)


def test_an_axis_twice():
    with pytest.raises(click.UsageError, match="'fsdp=2' is given twice"):
        mesh_from("fsdp=4,fsdp=2")
