"""`Profile` and its figures."""

import pytest

from profiling import read_profile
from profiling._profile.profile import OpClass, ProfiledCollective, Verdict
from tests.profiling.profiled_runs import jax_run
from tests.profiling.xplanes import cpu_profile


def collective(**fields) -> ProfiledCollective:
    return ProfiledCollective("a", "p(1)", "all-gather", 1, 8.0, 3.0, **fields)


def test_a_collective_s_figures():
    known = collective(fastest_s=2.0, wire_bytes=40, predicted_s=4.0)
    assert (known.hidden_s, known.wait_s) == (5.0, 6.0)
    assert (known.bytes_per_s, known.ratio) == (20.0, 2.0)


def test_what_is_not_known_of_a_collective_is_none():
    unknown = collective(fastest_s=None)
    assert (unknown.wait_s, unknown.bytes_per_s, unknown.ratio) == (None, None, None)
    assert collective(fastest_s=None, wire_bytes=40).bytes_per_s == 5.0  # 40 / total_s


@pytest.mark.parametrize(
    ("predicted", "ratio"), [(None, None), (0.0, None), (2.0, 1.5)]
)
def test_a_class_s_ratio(predicted, ratio):
    assert OpClass("matmul", False, 1, 1.0, 4.0, 3.0, predicted).ratio == ratio


def test_mappings_cannot_be_changed(tmp_path):
    found = read_profile(cpu_profile(tmp_path / "x.xplane.pb"))
    for view in (found.verdict.shares, found.steps[0].by_host):
        with pytest.raises(TypeError, match="does not support item assignment"):
            view["a"] = 1.0  # pyright: ignore[reportIndexIssue] -- refused at run time
    shares = {"compute": 1.0}
    assert Verdict("compute-bound", "", shares).shares is not shares


def test_median_and_spread_leave_the_last_step_out(tmp_path):
    found = read_profile(cpu_profile(tmp_path / "x.xplane.pb", steps=4, pause=9))
    times = [step.spent.step_s for step in found.steps]
    assert times == pytest.approx([79e-6, 79e-6, 79e-6, 70e-6])
    assert found.step_s == pytest.approx(79e-6)
    assert found.spread_s == pytest.approx(0)
    only = read_profile(cpu_profile(tmp_path / "y.xplane.pb", steps=1))
    assert only.step_s == pytest.approx(70e-6)
    assert only.predicted_step_s is None


def test_one_step_of_one_device_is_kept(tmp_path):
    found = read_profile(cpu_profile(tmp_path / "x.xplane.pb", doing="spmd/data:"))
    assert found.event_device == ("x", 0, 11)
    streams = [(e.name, e.stream, round(e.start_s * 1e6)) for e in found.events]
    assert streams == [
        ("dot.1", "compute", 0),
        ("all-gather.2", "communication", 40),
        ("add_fusion", "compute", 60),
    ]
    (data,) = found.host_events
    assert data.doing == "data"
    assert data.start_s == pytest.approx(70e-6)
    assert data.duration_s == pytest.approx(5e-6)


def test_repr_and_show(capsys):
    found = read_profile(jax_run())
    assert repr(found).startswith("Profile('jit_train_step(")
    assert "\n" not in repr(found)
    found.show(top=2)
    assert "Where a step goes" in capsys.readouterr().out
