import math
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from profiling._targets import chip_file
from profiling._targets.chip import Link
from profiling._targets.target import Target, targets

NAMES = ("a100", "h100", "h200", "b200", "gb200")
NAMES += ("v4", "v5e", "v5p", "v6e", "tpu7x", "cpu")


def caret(message: str) -> str:
    """What the caret of an error stands under."""
    _, text, marker = message.splitlines()
    return text[marker.index("^") :]


@pytest.mark.parametrize(
    ("text", "chips", "devices", "hosts", "near"),
    [
        ("h100:2x8", 16, 16, 2, 8),
        ("h100:4x2", 8, 8, 4, 2),  # NVLink ends at the host, full or not
        ("gb200:4x2", 8, 8, 4, 8),  # and joins the hosts of a rack
        ("a100", 8, 8, 1, 8),
        ("gb200:18x4", 72, 72, 18, 72),
        ("gb200:36x4", 144, 144, 36, 72),
        ("gb200:3x4", 12, 12, 3, 12),
        ("v4:2x2x4", 16, 16, 4, 16),
        ("v5e:4x4", 16, 16, 4, 16),
        ("v5e:16x16*4", 1024, 1024, 256, 256),
        ("v5p:8x8x4", 256, 256, 64, 256),
        ("v5p:2x4", 8, 8, 2, 8),
        ("v6e:1x1", 1, 1, 1, 1),
        ("tpu7x:2x2x2", 8, 16, 2, 16),
        ("tpu7x:1x1x1", 1, 2, 1, 2),
        ("cpu:16", 16, 16, 1, 16),
        ("cpu", 1, 1, 1, 1),
    ],
)
def test_counts(text, chips, devices, hosts, near):
    target = Target.parse(text)
    found = (target.num_chips, target.num_devices, target.num_hosts)
    assert found == (chips, devices, hosts)
    assert target.near_devices == near
    assert Target.parse(target.text) == target
    assert hash(Target.parse(target.text)) == hash(target)


@pytest.mark.parametrize(
    ("text", "match", "under"),
    [
        ("", "an empty text is no target", ""),
        ("h100:8", "hosts x GPUs; such as h100:2x8", "8"),
        ("h100:2x", "no target; such as", "x"),
        ("h100:2x16", "16 GPUs a host; a host of h100 has 8$", "16"),
        ("gb200:2x72", "an NVLink domain of 72 is gb200:18x4", "72"),
        ("gb200:20x4", "20 hosts are no whole number of NVLink domains", "20x4"),
        ("h100:2x8*2", "h100 has no slices", "*2"),
        ("h10:2x8", "unknown name 'h10'; did you mean 'h100'", "h10:2x8"),
        ("H100:2x8", "did you mean 'h100'", "H100:2x8"),
        ("xyz", "unknown name 'xyz'; there are a100, h100", "xyz"),
        ("v7x:2x2x1", "did you mean 'tpu7x'", "v7x:2x2x1"),
        ("tpu8:2x2x1", "did you mean 'tpu7x'", "tpu8:2x2x1"),
        ("v5litepod:4x4", "did you mean 'v5e'", "v5litepod:4x4"),
        ("v5litepod-16", "the cloud's name of a size", "-16"),
        ("v5e:3x5", "a host has 2x2 chips", "3x5"),
        ("v5e:1x4", "a host has 2x2 chips", "1x4"),
        ("v5e:2x2x2", "a v5e slice has 2 dims", "2x2x2"),
        ("v5p:4", "a v5p slice has 3 dims", "4"),
        ("v5e:0x2", "a size of 0", "0x2"),
        ("v5e:4x4*0", "a size of 0", "4x4*0"),
        ("v5p:4x4x4_twisted", "4x4x4 has no twisted torus", "_twisted"),
        ("v5e:4x8_twisted", "no twisted torus", "_twisted"),
        ("cpu:2x2", "one number of devices; such as cpu:8", "2x2"),
        ("cpu:99999999", "99999999 devices; at most", "99999999"),
        ("v5e:4x4*", "no target", "*"),
    ],
)
def test_texts_that_are_no_target(text, match, under):
    with pytest.raises(ValueError, match=match if match[-1] != "$" else None) as error:
        Target.parse(text)
    assert re.search(match, str(error.value).splitlines()[0])
    assert caret(str(error.value)) == under


def test_a_target_is_a_text():
    with pytest.raises(TypeError, match="target 8: a text such as 'h100:2x8'"):
        Target.parse(8)  # pyright: ignore[reportArgumentType] - the point of the test


@pytest.mark.parametrize(
    ("text", "group", "link"),
    [
        ("h100:2x8", [0, 7], "nvlink"),
        ("h100:2x8", [7, 8], "ib"),
        ("h100:2x8", range(16), "ib"),
        ("gb200:18x4", range(72), "nvlink"),
        ("gb200:36x4", [71, 72], "ib"),
        ("v5e:4x4", range(16), "ici"),
        ("v5e:4x4*2", [3, 15], "ici"),
        ("v5e:4x4*2", [0, 16], "dcn"),
        ("cpu:8", range(8), "memory"),
    ],
)
def test_link_of(text, group, link):
    assert Target.parse(text).link_of(group).name == link


@pytest.mark.parametrize("group", [[], [16], [-1]])
def test_groups_that_are_none(group):
    with pytest.raises(ValueError, match=r"h100:2x8: (an empty group|no device)"):
        Target.parse("h100:2x8").link_of(group)


def test_links_are_those_that_are_crossed():
    assert [link.name for link in Target.parse("h100:1x8").links] == ["nvlink"]
    assert [link.name for link in Target.parse("h100:2x8").links] == ["nvlink", "ib"]


@pytest.mark.parametrize(
    ("text", "group", "gigabytes"),
    [
        ("v5e:4x4", [0, 1], 50),  # one dim, no ring
        ("v5e:4x4", range(16), 100),  # two dims
        ("v5e:16x16", [0, 1], 100),  # one dim, a ring
        ("v5e:16x16", range(256), 200),
        ("v5p:4x4x4", range(64), 600),
        ("v5p:2x2x1", range(4), 200),
        ("tpu7x:4x4x4", range(128), 300),  # half of a chip's 600
        ("tpu7x:2x2x1", [0, 1], 300),  # the two devices of a chip
        ("v5e:4x4*2", [0, 16], 3.125),
        ("h100:2x8", [0, 1], 450),
        ("h100:2x8", [0, 8], 50),
    ],
)
def test_bandwidth_of(text, group, gigabytes):
    assert Target.parse(text).bandwidth_of(group) == pytest.approx(gigabytes * 1e9)


@pytest.mark.parametrize(
    ("text", "wraps"),
    [
        ("v5e:16x16", (True, True)),
        ("v5e:8x16", (False, True)),
        ("v5e:4x4", (False, False)),
        ("v5p:4x4x8", (True,) * 3),
        ("v5p:2x4x4", (False,) * 3),
        ("h100:2x8", ()),
    ],
)
def test_rings(text, wraps):
    assert Target.parse(text).wraps == wraps


@given(st.sampled_from(["v5e:8x4*2", "v5p:4x4x2", "tpu7x:4x2x2", "v6e:1x1", "v4"]))
def test_places_are_each_taken_by_the_devices_of_a_chip(text):
    target = Target.parse(text)
    places = [target.place(device) for device in range(target.near_devices)]
    assert len(set(places)) == math.prod(target.shape)
    for place in places:
        assert all(0 <= p < size for p, size in zip(place, target.shape, strict=True))
        assert places.count(place) == target.chip.devices_per_chip


def test_places_count_host_by_host():
    target = Target.parse("v5e:4x4")
    places = [target.place(i) for i in range(6)]
    assert places == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0)]
    assert Target.parse("h100:2x8").place(11) == (1, 3)


def test_figures_are_of_one_device():
    target = Target.parse("tpu7x:2x2x1")
    assert target.peak_flops("bfloat16") == 2307e12 / 2
    assert target.hbm_bytes == 96 << 30
    assert target.hbm_bandwidth == 3690e9
    assert Target.parse("cpu:8").hbm_bytes is None


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("h100", "float8_e4m3fn", 1979e12),
        ("a100", "float8_e5m2", 312e12),
        ("v5e", "float16", 197e12),
        ("v5e", "float64", 197e12),
        ("v5e", "uint8", 393e12),
        ("tpu7x", "int4", 2307e12 / 2),
        ("h100", "complex64", 67e12),
    ],
)
def test_dtypes_without_a_figure(name, dtype, peak):
    assert Target.parse(name).peak_flops(dtype) == peak


def test_a_dtype_that_is_no_number():
    with pytest.raises(ValueError, match="h100: no peak for dtype 'bool'; there are"):
        Target.parse("h100").peak_flops("bool")


@pytest.mark.parametrize("name", NAMES)
def test_each_figure_has_a_source(name):
    target = targets()[name]
    said = target.as_json()
    assert set(said["sources"]) == {
        "peak_flops",
        "hbm_bytes",
        "hbm_bandwidth",
        "layout",
    }
    assert all(said["sources"].values())
    assert all(link["source"] for link in said["links"])
    assert target.describe().startswith(f"{target.text}: ")
    if target.kind == "gpu":
        size = f"device_memory_size: {target.hbm_bytes}\n"
        assert size in target.chip.description


def test_all_are_listed():
    assert tuple(targets()) == NAMES


def test_port_bandwidth():
    assert Link("ici", 200.0, 4, 1e-6, "here").port_bandwidth == 50


def test_repr():
    assert repr(targets()["h100"].chip) == "Chip('h100', NVIDIA H100 SXM5 80 GB)"
    assert repr(Target.parse("v6e:1x1")) == "Target('v6e:1x1', 1 device on 1 host)"


# Files of a user


def written(folder: Path, content: object) -> Path:
    path = folder / "mine.yaml"
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_adds_and_overrides(tmp_path):
    file = written(
        tmp_path,
        """
        h100: {base: h100, hbm_bytes: 1000}
        mine: {base: h100, about: Mine, peak_flops: {bfloat16: 1e15}}
        again: {base: mine, hbm_bandwidth: 1e12}
        """,
    )
    found = targets(file=file)
    assert (*NAMES, "mine", "again") == tuple(found)
    assert found["h100"].hbm_bytes == 1000
    assert found["h100"].chip.about == targets()["h100"].chip.about
    mine = Target.parse("mine:2x8", file=file)
    assert (mine.peak_flops("bfloat16"), mine.hbm_bytes) == (1e15, 1000)
    assert mine.peak_flops("float8") == 1979e12
    assert found["again"].chip.about == "Mine"
    assert found["again"].hbm_bandwidth == 1e12
    assert targets()["h100"].hbm_bytes == 84942979072


def test_a_file_with_its_own_description(tmp_path):
    (tmp_path / "my.textproto").write_text("gpu_device_info {}", encoding="utf-8")
    content = {"mine": {"base": "a100", "description": "my.textproto"}}
    file = written(tmp_path, content)
    assert targets(file)["mine"].chip.description == "gpu_device_info {}"


LINK = {"bandwidth": 1.0, "ports": 1, "latency": 1.0, "source": "x"}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("[", "mine.yaml: no YAML"),
        ("", "holds NoneType; it must be a mapping of chips"),
        ({"a b": {}}, "'a b' is no name for a chip"),
        ({"mine": 3}, "mine: holds 3, must be a mapping"),
        ({"mine": {"base": "h10"}}, "base 'h10' is no chip; did you mean 'h100'"),
        ({"mine": {"kind": "npu"}}, "kind 'npu'; must be gpu, tpu or cpu"),
        (
            {"mine": {"kind": "cpu", "about": "x"}},
            "devices_per_chip, .* missing; write",
        ),
        ({"mine": {"base": "h100", "hbm_byte": 1}}, "'hbm_byte'; did you mean 'hbm_by"),
        (
            {"mine": {"base": "h100", "hbm_bytes": "x"}},
            "must be a whole number or null",
        ),
        (
            {"mine": {"base": "h100", "hbm_bandwidth": "x"}},
            "'x' must be a number above",
        ),
        (
            {"mine": {"base": "h100", "peak_flops": {"float8": -1}}},
            "-1 must be a number",
        ),
        ({"mine": {"base": "h100", "links": {}}}, "0 links; one near, one far"),
        ({"mine": {"base": "h100", "links": {"a": 1}}}, "link a: holds 1, must be"),
        (
            {"mine": {"base": "h100", "links": {"a": {**LINK, "ports": 1.5}}}},
            "link a: ports is 1.5, must be a whole number",
        ),
        ({"mine": {"base": "tpu7x", "devices_per_host": 3}}, "3 must be a multiple of"),
        ({"mine": {"base": "h100", "description": "no"}}, "description 'no' cannot be"),
        (
            {"mine": {"base": "h100", "source": {"layout": 1}}},
            "source says nothing of l",
        ),
    ],
    ids=range(17),
)
def test_files_that_are_none(tmp_path, content, match):
    with pytest.raises(ValueError, match=match):
        targets(written(tmp_path, content))


def test_peaks_need_float32(tmp_path):
    entry = yaml.safe_load(chip_file.BUILT_IN.read_text(encoding="utf-8"))["cpu"]
    entry["peak_flops"] = {"bfloat16": 1.0}
    with pytest.raises(
        ValueError, match=r"peak_flops \['bfloat16'\] must have float32"
    ):
        targets(written(tmp_path, {"mine": entry}))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        Target.parse("h100", file=tmp_path / "none.yaml")
