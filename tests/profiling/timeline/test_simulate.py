import pytest

from profiling._collectives.ops import collective_ops
from profiling._targets.target import Target
from profiling._timeline.simulate import timeline
from profiling._timeline.timeline import Timeline
from tests.profiling.hlo_files import DATA, STEP, content, entry, parse

FIXTURES = [
    (STEP.name, STEP, "cpu:8"),
    ("gpu", DATA / "gpu_h100.txt.gz", "h100:1x8"),
    ("fused", DATA / "tpu_v5e_fused.txt.gz", "v5e:2x4"),
    ("windowed", DATA / "tpu_v5e_windowed.txt.gz", "v5e:2x4"),
    ("ffts", DATA / "a100_8_jaxfft_1024_2_4_NCCL_float64_FFT.hlo.gz", "a100:1x8"),
]
each = pytest.mark.parametrize(
    ("path", "target"), [f[1:] for f in FIXTURES], ids=[f[0] for f in FIXTURES]
)


def estimated(path, target) -> Timeline:
    module = parse(content(path))
    return timeline(module, Target.parse(target), collective_ops(module))


@each
def test_the_parts_add_up(path, target):
    found = estimated(path, target)
    assert found.step_s > 0
    assert found.step_s == pytest.approx(found.compute_s + found.exposed_s)
    assert found.communication_s == pytest.approx(found.hidden_s + found.exposed_s)
    for name, part in (
        ("total_s", found.communication_s),
        ("exposed_s", found.exposed_s),
    ):
        whole = sum(getattr(o, name) for o in found.overlaps.values())
        assert whole == pytest.approx(part)
    assert all(o.hidden_s >= 0 and o.exposed_s >= 0 for o in found.overlaps.values())


@each
def test_each_collective_has_its_time(path, target):
    module = parse(content(path))
    ops = collective_ops(module)
    found = timeline(module, Target.parse(target), ops)
    assert set(found.overlaps) == {op.start.name for op in ops}
    drawn = [e for e in found.events if e.stream == "communication"]
    assert sum(e.num_runs for e in drawn) == sum(op.runs.times for op in ops)
    for op in ops:
        overlap = found.overlaps[op.start.name]
        if not op.is_async:
            assert overlap.hidden_s == 0, op
        assert (overlap.total_s > 0) == (op.wire_bytes > 0)


@each
def test_a_stream_does_one_thing_at_a_time(path, target):
    found = estimated(path, target)
    starts = [e.start_s for e in found.events]
    assert starts == sorted(starts)
    end = 0.0
    for event in found.events:
        assert event.duration_s >= 0
        assert event.start_s + event.duration_s <= found.step_s * (1 + 1e-9)
        if event.stream == "compute":
            assert event.start_s >= end * (1 - 1e-9)
            end = event.start_s + event.duration_s
    busy = sum(e.duration_s for e in found.events if e.stream == "compute")
    assert busy <= found.compute_s * (1 + 1e-9)


def test_utilisation_is_of_the_peak_of_the_dtype():
    """11 products of 2 x 256 x 512 x 2048 in bfloat16; the GPU does the same."""
    tpu = estimated(DATA / "tpu_v5e_fused.txt.gz", "v5e:2x4")
    gpu = estimated(DATA / "gpu_h100.txt.gz", "h100:1x8")
    assert tpu.flops == gpu.flops == 11 * 2 * 256 * 512 * 2048
    assert (tpu.peak_flops, gpu.peak_flops) == (197e12, 989.5e12)
    assert tpu.mfu == pytest.approx(tpu.flops / (tpu.step_s * 197e12))
    assert 0 < tpu.mfu < 1


def test_windowed_einsums_multiply_while_they_permute():
    """Five products of 1024 x 2048 x 5632 in loops of permutes, each counted once.

    Permutes in the loops hide behind matmuls; the ends of the rings do not.
    """
    found = estimated(DATA / "tpu_v5e_windowed.txt.gz", "v5e:2x4")
    assert found.flops == 5 * 2 * 1024 * 2048 * 5632
    in_loops = [n for n, o in found.overlaps.items() if o.overlaps_matmul]
    assert len(in_loops) >= 12
    assert found.matmul_overlap_share > 0.8
    assert found.hidden_s > found.exposed_s


def test_the_share_with_a_matmul_is_by_bytes():
    """One of two gathers has a matmul in between; it moves three times as much."""
    at = "use_global_device_ids=true, replica_groups=[1,4]<=[4], dimensions={0}"
    module = entry(
        "x = f32[300,10] parameter(0)\ny = f32[100,10] parameter(1)\n"
        f"g = (f32[300,10], f32[1200,10]) all-gather-start(x), channel_id=1, {at}\n"
        "m = f32[10,10] dot(y, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
        "gd = f32[1200,10] all-gather-done(g)\n"
        f"h = (f32[100,10], f32[400,10]) all-gather-start(y), channel_id=2, {at}\n"
        "n = f32[10,10] negate(m)\nhd = f32[400,10] all-gather-done(h)\n"
        "ROOT t = (f32[10,10]) tuple(n)",
        header=", is_scheduled=true, num_partitions=4",
    )
    ops = collective_ops(module)
    found = timeline(module, Target.parse("cpu:4"), ops)
    assert found.matmul_overlap_share == 0.75


def test_a_program_that_was_measured():
    """34.7 ms on 8 A100, the fastest of ten, with what the host takes."""
    found = estimated(*FIXTURES[-1][1:])
    assert found.step_s == pytest.approx(34.7e-3, rel=0.4)


def test_a_module_without_collectives():
    module = entry(
        "x = f32[8,8] parameter(0)\nROOT y = f32[8,8] negate(x)",
        header=", is_scheduled=true",
    )
    found = timeline(module, Target.parse("h100"), ())
    assert (found.communication_s, found.matmul_overlap_share, found.mfu) == (0, 0, 0)
    assert found.step_s == found.compute_s > 0
    assert dict(found.overlaps) == {}


def test_more_bandwidth_takes_less_time():
    path = DATA / "a100_8_jaxfft_1024_2_4_NCCL_float64_FFT.hlo.gz"
    module = parse(content(path))
    a100, h200 = Target.parse("a100:1x8"), Target.parse("h200:1x8")
    ops = collective_ops(module)
    assert timeline(module, h200, ops).step_s < timeline(module, a100, ops).step_s


def test_a_module_that_has_no_order():
    module = entry("ROOT x = f32[8] parameter(0)")
    with pytest.raises(
        ValueError, match=r"'m' is not scheduled.*give the one that XLA"
    ):
        timeline(module, Target.parse("h100"), ())


def test_a_target_that_is_too_small():
    module = entry(
        "ROOT x = f32[8] parameter(0)", header=", is_scheduled=true, num_partitions=16"
    )
    with pytest.raises(ValueError, match=r"is for 16 devices, h100:1x8 has 8; give a"):
        timeline(module, Target.parse("h100:1x8"), ())
