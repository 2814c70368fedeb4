"""Planes of GPUs and TPUs. They are made from the public format, not by a run."""

import pytest

from profiling._profile.device import chip_of, device_of, read_device
from profiling._profile.trace import Run
from profiling._profile.xplane import read_space
from tests.profiling.profile import collected
from tests.profiling.xplanes import PS, Plane, gpu_profile, save, tpu_profile


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/device:GPU:3", ("gpu", 3)),
        ("/device:TPU:0", ("tpu", 0)),
        ("/device:TPU:0 SparseCore 1", None),
        ("/host:CPU", None),
        ("/device:CUSTOM:x", None),
    ],
)
def test_which_device_a_plane_is_of(name, expected, tmp_path):
    (plane,) = read_space(save(tmp_path / "x.xplane.pb", Plane(name))).planes[:1]
    assert device_of(plane) == expected
    assert chip_of(plane) == ""


def test_a_tpu(tmp_path):
    plane = read_space(tpu_profile(tmp_path / "x.xplane.pb")).planes[0]
    ops, runs, num_steps = read_device(plane, "tpu", 0)
    assert (len(ops), num_steps, chip_of(plane)) == (10, 2, "TPU v5 lite")
    assert runs == [
        Run("jit_step(7)", 0, 0, 130 * PS),
        Run("jit_step(7)", 0, 200 * PS, 330 * PS),
    ]
    assert {op.program for op in ops} == {"jit_step(7)"}
    assert (ops[1].name, ops[1].category) == ("fusion.3", "convolution fusion")


def test_a_tpu_without_short_names(tmp_path):
    plane = Plane("/device:TPU:0")
    plane.line("XLA Ops").event(
        "%fusion.3 = f32[8]{0} fusion(%p)", 0, 5, hlo_module="jit_f", program_id=2
    )
    read = read_space(save(tmp_path / "x.xplane.pb", plane)).planes[0]
    (op,) = read_device(read, "tpu", 0)[0]
    assert (op.name, op.program) == ("fusion.3", "jit_f(2)")


def test_a_gpu_s_kernels_are_not_counted_again(tmp_path):
    plane = read_space(gpu_profile(tmp_path / "x.xplane.pb")).planes[0]
    ops, runs, _ = read_device(plane, "gpu", 0)
    assert (len(ops), runs) == (6, [])
    assert {op.line for op in ops} == {13, 24}
    talk = next(op for op in ops if op.line == 24)
    assert (talk.name, talk.program) == ("all-gather-start.1", "jit_step(7)")
    assert talk.category == "ncclDevKernel_AllGather_RING_LL"


def test_of_nested_instructions_the_innermost(tmp_path):
    plane = Plane("/device:GPU:0")
    stream = plane.line("Stream #1")
    stream.event("kernel", 0, 1, hlo_op="while.1::fusion.2", hlo_module="m")
    stream.event("memcpy", 1, 1)
    read = read_space(save(tmp_path / "x.xplane.pb", plane)).planes[0]
    named, unnamed = read_device(read, "gpu", 0)[0]
    assert (named.name, named.program) == ("fusion.2", "m")
    assert (unnamed.name, unnamed.program) == ("memcpy", "")


# In the form of the collectors


def device_plane(path):
    return next(p for p in read_space(path).planes if device_of(p) is not None)


def test_memory_that_is_held_is_no_operation(tmp_path):
    plane = device_plane(collected.gpu_profile(tmp_path / "x.xplane.pb"))
    ops, _, _ = read_device(plane, "gpu", 0)
    assert {op.line for op in ops} == {0, 14, 22}
    assert max(op.end - op.start for op in ops) == 50 * PS
    assert len(ops) == 6 * collected.STEPS
    assert {op.name for op in ops if op.line == 0} == {"Memset 2"}
    assert chip_of(plane) == "NVIDIA H100"


@pytest.mark.parametrize("graph", ["node", "whole"])
def test_kernels_of_a_graph_do_not_name_what_launched_it(graph, tmp_path):
    path = collected.gpu_profile(tmp_path / "x.xplane.pb", graph=graph)
    ops, _, _ = read_device(device_plane(path), "gpu", 0)
    kernels = [op for op in ops if not op.name.startswith(("Memcpy", "Memset"))]
    assert not any(op.is_named for op in kernels)
    assert {op.program for op in kernels} == {"jit_step(7)"}
    assert {op.name for op in kernels} == {op.category for op in kernels}


def test_a_tpu_s_programs_have_numbers_of_64_bits(tmp_path):
    path = collected.tpu_profile(tmp_path / "x.xplane.pb")
    ops, runs, num_steps = read_device(device_plane(path), "tpu", 0)
    assert (num_steps, len(runs), len(ops)) == (5, 5, 20)
    assert {op.program for op in ops} == {run.program for run in runs}


def test_operations_of_a_step_that_the_capture_cut_off(tmp_path):
    path = collected.tpu_profile(tmp_path / "x.xplane.pb", cut=True)
    ops, runs, _ = read_device(device_plane(path), "tpu", 0)
    assert (len(runs), len(ops)) == (3, 16)
    assert {op.program for op in ops} == {collected.STEP}
