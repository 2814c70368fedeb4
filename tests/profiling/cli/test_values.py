import click
import pytest

import flags
from profiling._cli.values import (
    flags_from,
    mesh_from,
    preset_from,
    targets_from,
    with_preset,
)
from profiling._targets.target import Target
from tests.profiling.compilers import need
from tests.profiling.one_weight import program

SCATTER = "xla_gpu_reduce_scatter_combine_threshold_bytes"


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


def test_a_preset(tmp_path):
    assert preset_from("gpu-overlap") is flags.preset("gpu-overlap")
    file = tmp_path / "mine.yaml"
    file.write_text("flags: {xla_a: 1}", encoding="utf-8")
    assert preset_from(str(file)).values() == {"xla_a": 1}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("gpu-overlp", "--preset: unknown preset 'gpu-overlp'; did you mean"),
        ("none.yaml", r"--preset none\.yaml: No such file"),
    ],
)
def test_no_preset(text, match):
    with pytest.raises(click.UsageError, match=match):
        preset_from(text)


def test_flags_of_a_preset():
    target = Target.parse(need("h100:1x8"))
    entry = preset_from("gpu-overlap")
    found, messages = with_preset(entry, program(8), target, {"xla_a": "1"})
    # half of the weight's 16 KiB, scattered over 8 devices
    assert found == {SCATTER: 1024, "xla_a": "1"}
    assert messages == ()


def test_ones_own_flag_wins():
    target = Target.parse(need("h100:1x8"))
    entry = preset_from("gpu-overlap")
    found, messages = with_preset(entry, program(8), target, {SCATTER: "7"})
    assert found == {SCATTER: "7"}
    assert messages == (
        f"{SCATTER} stays at 7, as --flag has it; preset gpu-overlap has 1024",
    )
    found, messages = with_preset(entry, program(8), target, {SCATTER: "1024"})
    assert messages == ()


def test_a_preset_for_something_else(tmp_path):
    entry = preset_from("gpu-overlap")
    with pytest.raises(click.UsageError, match="is for gpu, --target cpu:8 is a cpu"):
        with_preset(entry, program(8), Target.parse("cpu:8"), {})
    file = tmp_path / "mine.yaml"
    file.write_text("flags: {xla_no_such: true}", encoding="utf-8")
    with pytest.raises(click.UsageError, match=r"--preset mine: mine: jaxlib .* no"):
        with_preset(preset_from(str(file)), program(8), Target.parse("cpu:8"), {})
