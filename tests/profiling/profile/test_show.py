"""A profile as text, in 80 columns and more."""

from pathlib import Path

import pytest

from profiling import Profile, analyse, read_profile
from profiling._profile.show import show_profile
from tests.profiling.hlo_files import DATA, content, parse
from tests.profiling.on_console import on_console
from tests.profiling.profiled_runs import jax_run
from tests.profiling.xplanes import cpu_profile, replayed, tpu_profile

WIDTHS = (80, 100, 120, 150)


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Profile:
    """A GPU run that takes as long as was estimated."""
    module = parse(content(DATA / "gpu_h100.txt.gz"))
    schedule = analyse(module, target="h100:1x8", mesh={"fsdp": 8})
    path: Path = tmp_path_factory.mktemp("played") / "node0.xplane.pb"
    return read_profile(replayed(path, schedule), program=schedule)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_fits(width):
    text = on_console(show_profile, read_profile(jax_run()), width=width, top=3)
    assert text.startswith("jit_train_step(")
    for title in (
        "Where a step goes",
        "Time by class of operation",
        "Collectives",
        "The 3 longest operations",
    ):
        assert title in text


@pytest.mark.parametrize("width", WIDTHS)
def test_predicted_and_measured(played, width):
    text = on_console(show_profile, played, width=width)
    words = " ".join(text.split())
    assert "a step takes 166 us (median of 2;" in words
    assert "estimate: 166 us; measured is 1x of it" in words
    assert "communication-bound: collectives that no compute hides take 61%" in words
    (row,) = (line for line in text.splitlines() if line.startswith("  matmul"))
    assert row.split()[-5:] == ["38.7", "us", "38.7", "us", "1x"]
    assert "gradient reduction, backward" in text
    assert ("GB/s" in text) is (width >= 100)


def test_hosts_and_what_they_did(tmp_path):
    for name, slow in (("node0", 1.0), ("node1", 1.0), ("node2", 1.5)):
        cpu_profile(
            tmp_path / f"{name}.xplane.pb", slow=slow, doing="spmd/data:", pause=40
        )
    text = on_console(show_profile, read_profile(tmp_path))
    assert "on 6 CPU devices, 3 hosts" in text
    (late,) = (line for line in text.splitlines() if "others wait for it" in line)
    assert late.split()[0] == "node2"
    assert "host, a step: data 40 us (devices idle 40 us)" in text
    assert "input-bound" in text
    assert "note: no HLO of jit_step(7)" in " ".join(text.split())


def test_a_chip_without_an_estimate(tmp_path):
    text = on_console(show_profile, read_profile(tpu_profile(tmp_path / "x.xplane.pb")))
    assert text.startswith("jit_step(7) on 1 TPU device (TPU v5 lite)\n")
    assert "estimate" not in text.partition("note:")[0]


def test_nothing_moves(tmp_path):
    from tests.profiling.xplanes import Plane, save

    plane = Plane("/device:TPU:0")
    plane.line("XLA Ops").event("fusion.1", 0, 5)
    text = on_console(show_profile, read_profile(save(tmp_path / "x.xplane.pb", plane)))
    assert "None ran." in text
