import pytest

from profiling._targets.fit import fitting
from profiling._targets.target import Target


@pytest.mark.parametrize("number", [1, 2, 3, 8, 16, 64, 256, 4096])
def test_each_has_that_many_devices(number):
    found = fitting(number)
    assert f"cpu:{number}" in found
    assert {Target.parse(text).num_devices for text in found} == {number}
    assert len({Target.parse(text).chip.name for text in found}) == len(found)


def test_shapes_are_even():
    assert {"h100:32x8", "v5e:16x16", "v5p:4x8x8"} <= set(fitting(256))
    assert "gb200:36x4" in fitting(144)  # two NVLink domains
    assert {"h100:1x8", "v5e:2x4"} <= set(fitting(8))


def test_what_cannot_be_is_not_suggested():
    assert fitting(7) == (
        *(f"{name}:1x7" for name in ("a100", "h100", "h200", "b200")),
        "cpu:7",
    )


def test_own_chips(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("mine: {base: h100, about: Mine}", encoding="utf-8")
    assert "mine:2x8" in fitting(16, file=file)
