"""xprof's own table of a profile, beside ours. The TPU's profile is made by hand."""

import importlib.util
import subprocess

import pytest

from profiling import read_profile
from profiling._profile.xprof import op_rates, rates_of
from tests.profiling.profiled_runs import jax_run
from tests.profiling.xplanes import tpu_profile

needs_xprof = pytest.mark.skipif(
    importlib.util.find_spec("xprof") is None, reason="xprof is not installed"
)


@needs_xprof
def test_xprof_reads_the_same_times(tmp_path):
    path = tpu_profile(tmp_path / "node0.xplane.pb", steps=3)
    rates = op_rates([path])
    assert {number for number, _ in rates} == {"7"}
    found = read_profile(path, xprof=True)
    for op in found.ops:
        rate = rates["7", op.name]
        assert rate.self_s / 3 == pytest.approx(op.own_s, rel=1e-6)
        assert op.flops_per_s == rate.flops_per_s
        assert op.bytes_per_s == rate.bytes_per_s
    assert list(tmp_path.iterdir()) == [path]  # its caches are not left here


@needs_xprof
def test_of_a_cpu_run_xprof_has_no_table():
    found = read_profile(jax_run(), xprof=True)
    assert found.notes[-1] == "xprof makes no table of operations of this cpu run"
    assert all(op.flops_per_s is None for op in found.ops)


def test_a_table():
    names = ("program_id", "hlo_op_name", "model_flop_rate", "measured_memory_bw")
    table = {
        "cols": [{"id": name} for name in (*names, "bound_by", "total_self_time")],
        "rows": [{"c": [{"v": v} for v in ("7", "dot.1", 2.0, 3.0, "HBM", 5.0)]}],
    }
    (rate,) = rates_of(table).values()
    assert (rate.flops_per_s, rate.bytes_per_s) == (2e9, 3 * 2**30)
    assert (rate.bound_by, rate.self_s) == ("HBM", pytest.approx(5e-6))
    assert rates_of({}) == {}


def test_without_xprof(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="xprof is not installed; pip install"):
        read_profile(tpu_profile(tmp_path / "x.xplane.pb"), xprof=True)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (subprocess.CompletedProcess((), 1, "", "a\nbroken"), "this profile: broken"),
        (subprocess.CompletedProcess((), 0, "", ""), "this profile: no reason"),
        (subprocess.TimeoutExpired((), 1), "xprof took more than 300 s"),
    ],
    ids=["fails", "writes nothing", "takes too long"],
)
def test_xprof_that_fails(result, words, monkeypatch, tmp_path):
    def run(*args, **how):
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ValueError, match=words):
        op_rates([tpu_profile(tmp_path / "x.xplane.pb")])
