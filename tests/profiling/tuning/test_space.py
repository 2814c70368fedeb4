import pytest

from flags import Workload
from flags._workload import DEFAULT_BYTES
from profiling._tuning.space import Knob, knobs

MB = 1 << 20
STEP = Workload(8, layer_bytes=100 * MB)


def found(workload=STEP, kind="gpu", accepts=lambda name: True):
    return {k.name: k for k in knobs(workload, kind, accepts=accepts)}


def test_thresholds_are_shares_of_a_layer():
    gpu = found()
    gather = gpu["xla_gpu_all_gather_combine_threshold_bytes"]
    assert gather.values == (16 * MB, None, 64 * MB, 128 * MB, 256 * MB, 512 * MB)
    scatter = gpu["xla_gpu_reduce_scatter_combine_threshold_bytes"]
    assert scatter.values == (2 * MB, 4 * MB, 8 * MB, 16 * MB, None, 64 * MB)


def test_the_default_has_one_rung():
    for knob in found().values():
        if knob.is_size:
            near = [v for v in knob.values if v and 0.9 < v / DEFAULT_BYTES < 1.1]
            assert (near, knob.values.count(None)) == ([], 1)


def test_without_layers():
    gather = found(Workload(8))["xla_gpu_all_gather_combine_threshold_bytes"]
    assert gather.values == (8 * MB, 16 * MB, None, 64 * MB, 128 * MB, 256 * MB)


def test_tiny_layers():
    scatter = found(Workload(8, layer_bytes=4))
    assert scatter["xla_gpu_reduce_scatter_combine_threshold_bytes"].values[0] == 1


def test_only_what_the_compiler_takes():
    assert set(found(accepts=lambda name: name.endswith("_mib"))) == {
        "xla_gpu_threshold_for_windowed_einsum_mib"
    }
    assert found(kind="cpu") == {}
    assert all(name.startswith("xla_") for name in found(kind="tpu"))


def test_each_flag_is_varied_once():
    for kind in ("gpu", "tpu"):
        names = [k.name for k in knobs(STEP, kind, accepts=lambda name: True)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("current", "rungs"),
    [
        (None, (4 * MB, None, 64 * MB)),
        (64 * MB, (4 * MB, None, 64 * MB)),
        (48 * MB, (4 * MB, None, 48 * MB, 64 * MB)),
        (1, (1, 4 * MB, None, 64 * MB)),
    ],
)
def test_a_size_has_its_place(current, rungs):
    assert Knob("x", (4 * MB, None, 64 * MB), "", is_size=True).rungs(current) == rungs


def test_another_value_comes_last():
    assert Knob("x", (None, 2), "").rungs(4) == (None, 2, 4)
