"""Profiles of runs on CPU devices, and of GPUs and TPUs as their format says.

Nothing here ran on a GPU or TPU: those profiles are made by hand, or play back the
estimate of a module that was compiled for one.
"""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from profiling import analyse, read_profile
from profiling._dump import Dump, DumpedProgram
from tests.profiling.hlo_files import DATA, JAX, content, parse
from tests.profiling.profile import collected
from tests.profiling.profiled_runs import LAYERS, STEPS, jax_run, torch_xla_run
from tests.profiling.programs import decoder_program, decoder_schedule
from tests.profiling.xplanes import (
    Plane,
    cpu_profile,
    gpu_profile,
    replayed,
    save,
    tpu_profile,
)

MESH = {"fsdp": 8}
RUNS = {"jax": jax_run, "torch_xla": torch_xla_run}
each_run = pytest.mark.parametrize(
    "run", [pytest.param(r, id=n) for n, r in RUNS.items()]
)
SECONDS = 1e-9  # what sums of floats may be off by


# Runs on 8 CPU devices


@each_run
def test_steps_and_devices_of_a_run(run: Callable[[], Path]):
    found = read_profile(run(), mesh=MESH)
    assert (found.device_kind, found.num_devices) == ("cpu", 8)
    assert [step.number for step in found.steps] == list(range(STEPS))
    assert [step.is_counted for step in found.steps] == [True] * (STEPS - 1) + [False]
    assert not any("told apart" in note for note in found.notes)


@each_run
def test_operations_and_idle_time_add_up_to_the_step(run):
    found = read_profile(run(), mesh=MESH)
    idle = found.spent.gap_s + found.spent.input_s + found.spent.host_s
    own = sum(op.own_s for op in found.ops)
    assert own + idle == pytest.approx(found.spent.step_s, abs=SECONDS)
    assert sum(c.own_s for c in found.op_classes) == pytest.approx(own, abs=SECONDS)
    exposed = sum(c.exposed_s for c in found.collectives)
    assert exposed == pytest.approx(found.spent.exposed_s, abs=SECONDS)
    for step in found.steps:
        whole, *parts = dataclasses.astuple(step.spent)
        assert sum(parts) == pytest.approx(whole, abs=SECONDS)
    assert sum(found.verdict.shares.values()) == pytest.approx(1)


@each_run
def test_each_operation_of_the_program_ran_once_on_each_device(run):
    found = read_profile(run(), mesh=MESH)
    main = [op for op in found.ops if op.program == found.program]
    assert {op.num_runs for op in main} == {1.0}
    gathers = [c for c in found.collectives if c.kind == "all-gather"]
    assert len(gathers) >= LAYERS
    assert all(c.num_runs == 1 and c.fastest_s is not None for c in found.collectives)
    assert all((c.wait_s or 0) >= 0 and c.hidden_s >= 0 for c in found.collectives)


@each_run
def test_collectives_have_tensor_role_axis_and_estimate(run):
    found = read_profile(run(), mesh=MESH)
    assert found.schedule is not None
    assert found.schedule.target is not None
    assert found.schedule.target.text == "cpu:8"
    names = {c.name for c in found.schedule.collectives}
    assert {c.name for c in found.collectives} == names
    for c in found.collectives:
        assert (c.axes, c.group_size, c.link) == (("fsdp",), 8, "memory")
        assert c.wire_bytes
        assert c.predicted_s
        assert c.ratio == c.total_s / c.predicted_s
        assert c.bytes_per_s == pytest.approx(c.wire_bytes / (c.fastest_s or 0))
    roles = {c.role for c in found.collectives}
    assert {"weight gather", "gradient reduction"} <= roles
    gathers = {c.tensor for c in found.collectives if c.role == "weight gather"}
    assert len(gathers) == LAYERS
    classes = {c.kind: c for c in found.op_classes}
    assert classes["matmul"].predicted_s
    assert found.predicted_step_s == found.schedule.step_s


def test_a_program_that_did_not_run_is_refused():
    module = parse(content(DATA / "gpu_h100.txt.gz"))
    program = DumpedProgram("other", "other", 0, {}, {"scheduled": module})
    for given in (module, program, Dump(Path("dump"), (program,))):
        with pytest.raises(ValueError, match=r"is not what ran: of \d+ operations"):
            read_profile(jax_run(), program=given)


def test_a_program_of_other_inputs_is_refused():
    with pytest.raises(ValueError, match="inputs"):
        read_profile(jax_run(), program=decoder_program(8))


def test_a_program_that_lies_beside_but_is_another_s_is_not_used(tmp_path):
    (session,) = {file.parent for file in jax_run().rglob("*.xplane.pb")}
    shutil.copytree(session, tmp_path / "s")
    decoder_program(8).save(tmp_path / "s" / "decoder.spmd")
    found = read_profile(tmp_path / "s")
    assert found.schedule is not None
    assert found.schedule.name == "jit_train_step"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"mesh": {"fsdp": 4}}, "is for 8 devices"),
        ({"target": "h100:1x4"}, "is for 8 devices, h100:1x4 has 4"),
        ({"target": "h100:0x4"}, "h100:0x4"),
    ],
    ids=["mesh", "target", "no target"],
)
def test_what_does_not_fit_the_run_is_refused(how, words):
    with pytest.raises(ValueError, match=words):
        read_profile(jax_run(), **how)


def test_a_program_that_was_compiled_again_is_said(tmp_path):
    plane = Plane("/host:CPU")
    line = plane.line("tf_XLAEigen/1")
    for run, number in enumerate((1, 1, 2)):
        line.event(
            "dot.1",
            100 * run,
            50,
            hlo_op="dot.1",
            hlo_module="jit_f",
            program_id=number,
            run_id=run + 1,
            device_ordinal=0,
        )
    found = read_profile(save(tmp_path / "x.xplane.pb", plane))
    assert len(found.steps) == 3
    assert "jit_f ran as 2 programs (jit_f(1), jit_f(2))" in found.notes[-1]


# Programs that are known, with the times of their estimate


def test_a_program_gives_names_and_the_estimate_comes_back(tmp_path):
    schedule = decoder_schedule("h100:2x8")
    path = replayed(tmp_path / "node0.xplane.pb", schedule, devices=2)
    found = read_profile(path, program=schedule.compiled, mesh=schedule.mesh)
    assert (found.device_kind, found.num_devices) == ("gpu", 2)
    assert found.step_s == pytest.approx(schedule.step_s, rel=1e-3)
    planned = {c.name: c for c in schedule.collectives}
    assert {c.name for c in found.collectives} == set(planned)
    for c in found.collectives:
        assert c.ratio == pytest.approx(1, rel=1e-3)
        assert c.axes == planned[c.name].axes
        assert c.wire_bytes == planned[c.name].step_wire_bytes
    named = read_profile(path, program=schedule)
    assert {c.tensor for c in named.collectives} == {c.tensor for c in planned.values()}
    for row in named.op_classes:
        assert row.own_s == pytest.approx(row.predicted_s, rel=0.02, abs=1e-7)


@pytest.mark.parametrize(
    ("name", "target"),
    [("tpu_v5e_windowed", "v5e:2x4"), ("tpu_v5e_fused", "v5e:2x4")],
)
def test_modules_with_loops_and_fused_collectives(name, target, tmp_path):
    schedule = analyse(parse(content(DATA / f"{name}.txt.gz")), target=target)
    found = read_profile(replayed(tmp_path / "x.xplane.pb", schedule), program=schedule)
    assert len(found.steps) == 3
    assert found.step_s == pytest.approx(schedule.step_s, rel=1e-2)
    assert len(found.collectives) == len(schedule.collectives)
    for c in found.collectives:
        assert c.ratio == pytest.approx(1, rel=1e-2)


# GPUs and TPUs, by the form of their profiles


def test_a_tpu(tmp_path):
    found = read_profile(tpu_profile(tmp_path / "x.xplane.pb"))
    assert (found.device_kind, found.chip) == ("tpu", "TPU v5 lite")
    assert found.step_s == pytest.approx(200e-6)
    (gather,) = found.collectives
    assert gather.total_s == pytest.approx(100e-6)  # from its start to its done
    assert gather.exposed_s == pytest.approx(22e-6)  # start and done themselves
    own = {c.kind: c.own_s for c in found.op_classes}
    assert own["matmul"] == pytest.approx(78e-6)
    assert own["while"] == pytest.approx(10e-6)  # what its body leaves
    assert found.verdict.kind == "host-bound"
    assert "no HLO of jit_step(7)" in found.notes[0]


@pytest.mark.parametrize("hlo", [True, False], ids=["named", "as CUDA graphs"])
def test_a_gpu(hlo, tmp_path):
    found = read_profile(gpu_profile(tmp_path / "x.xplane.pb", hlo=hlo))
    assert found.step_s == pytest.approx(150e-6)
    (gather,) = found.collectives
    assert gather.kind == "all-gather"
    assert gather.total_s == pytest.approx(50e-6)
    assert gather.exposed_s == pytest.approx(20e-6)
    assert any("CUDA graphs" in note for note in found.notes) is not hlo
    kinds = {c.kind for c in found.op_classes}
    assert kinds == {"all-gather", "matmul", "fusion"}


@pytest.mark.parametrize("graph", ["", "node"])
def test_a_gpu_as_its_collector_writes_it(graph, tmp_path):
    path = collected.gpu_profile(tmp_path / "x.xplane.pb", graph=graph)
    found = read_profile(path)
    assert found.step_s == pytest.approx(collected.STEP_US * 1e-6)
    assert found.spent.compute_s == pytest.approx(72e-6)
    assert found.spent.exposed_s == pytest.approx(10e-6)
    assert (found.spent.gap_s, found.spent.host_s) == (0, pytest.approx(18e-6))
    (gather,) = found.collectives
    assert (gather.kind, gather.num_runs) == ("all-gather", 1)
    assert any("CUDA graphs" in note for note in found.notes) is bool(graph)
    kinds = {c.kind for c in found.op_classes}
    assert kinds == {"all-gather", "matmul", "fusion", "copy", "memset"}


def test_a_gpu_whose_graphs_are_one_event_each(tmp_path):
    path = collected.gpu_profile(tmp_path / "x.xplane.pb", graph="whole")
    found = read_profile(path)
    assert found.step_s == pytest.approx(collected.STEP_US * 1e-6)
    own = {row.kind: row.own_s for row in found.op_classes}
    assert own == {"cuda-graph": pytest.approx(80e-6), "copy": pytest.approx(2e-6)}


def test_kernels_of_graphs_do_not_tell_that_another_program_ran(tmp_path):
    path = collected.gpu_profile(tmp_path / "x.xplane.pb", graph="node")
    module = parse(content(DATA / "gpu_h100.txt.gz"))
    assert read_profile(path, program=module).schedule is not None


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut off"])
def test_a_tpu_as_its_collector_writes_it(cut, tmp_path):
    path = collected.tpu_profile(tmp_path / "x.xplane.pb", cut=cut)
    found = read_profile(path)
    assert (found.program, found.chip) == (collected.STEP, "TPU v6 lite")
    assert found.step_s == pytest.approx(collected.STEP_US * 1e-6)
    gather, scatter = sorted(found.collectives, key=lambda c: c.kind)
    assert (gather.kind, scatter.kind) == ("all-gather", "reduce-scatter")
    assert gather.total_s == pytest.approx(70e-6)
    assert gather.exposed_s == pytest.approx(22e-6)
    spent = found.spent
    assert (spent.compute_s, spent.exposed_s) == (
        pytest.approx(48e-6),
        pytest.approx(32e-6),
    )
    assert (spent.gap_s, spent.host_s) == (0, pytest.approx(20e-6))


def test_several_hosts_and_the_one_that_others_wait_for(tmp_path):
    for name, slow in (("node0", 1.0), ("node1", 1.0), ("node2", 1.5)):
        cpu_profile(tmp_path / f"{name}.xplane.pb", slow=slow)
    found = read_profile(tmp_path)
    assert [host.name for host in found.hosts] == ["node0", "node1", "node2"]
    assert [host.is_straggler for host in found.hosts] == [False, False, True]
    assert found.num_devices == 6
    assert found.steps[0].by_host["node2"] == pytest.approx(95e-6)


def test_a_host_that_recorded_nothing_is_said(tmp_path):
    cpu_profile(tmp_path / "node0.xplane.pb")
    plane = Plane("/host:CPU")
    plane.line("python").event("isinstance", 0, 1)
    save(tmp_path / "node1.xplane.pb", plane)
    found = read_profile(tmp_path)
    assert [host.name for host in found.hosts] == ["node0"]
    assert "node1 recorded no work of its devices: it is left out" in found.notes


# What holds a run up


@pytest.mark.parametrize(
    ("doing", "pause", "kind", "words"),
    [
        ("spmd/data:", 80, "input-bound", "while the host waits for data"),
        ("spmd/checkpoint:", 80, "host-bound", "the host saved or loaded a checkpoint"),
        ("spmd/trace:", 80, "host-bound", "the host recorded the graph"),
        ("", 80, "host-bound", "the host did something that no span names"),
        ("spmd/data:", 5, "compute-bound", "compute takes 67%"),
    ],
)
def test_what_the_host_does_while_devices_are_idle(doing, pause, kind, words, tmp_path):
    path = cpu_profile(tmp_path / "x.xplane.pb", pause=pause, doing=doing)
    found = read_profile(path)
    assert found.verdict.kind == kind
    assert words in found.verdict.why
    assert [step.number for step in found.steps] == [10, 11, 12]
    waited = found.spent.input_s if doing == "spmd/data:" else found.spent.host_s
    assert waited == pytest.approx(pause * 1e-6)


def test_communication_that_nothing_hides(tmp_path):
    path = cpu_profile(tmp_path / "x.xplane.pb", pause=0, slow=0.05)
    assert read_profile(path).verdict.kind == "communication-bound"


# What cannot be read


def test_a_profile_in_which_nothing_ran(tmp_path):
    plane = Plane("/host:CPU")
    plane.line("python").event("isinstance", 0, 1)
    path = save(tmp_path / "node3.xplane.pb", plane)
    match = "no program ran on any device of node3 .* host_tracer_level of 1 or more"
    with pytest.raises(ValueError, match=match):
        read_profile(path)


def test_an_hlo_file_is_no_profile():
    with pytest.raises(ValueError, match="no profile"):
        read_profile(next(JAX.glob("*.txt")))
    with pytest.raises(ValueError, match="no profile among"):
        read_profile(JAX)
    with pytest.raises(FileNotFoundError):
        read_profile("nowhere")


def test_hlo_that_cannot_be_read_is_said(tmp_path):
    from tests.profiling.xplanes import metadata

    plane = Plane("/host:CPU")
    line = plane.line("tf_XLAEigen/1")
    line.event(
        "dot.1",
        0,
        5,
        hlo_op="dot.1",
        hlo_module="jit_f",
        program_id=1,
        run_id=1,
        device_ordinal=0,
    )
    path = save(tmp_path / "x.xplane.pb", plane, metadata(jit_f__1=b"\xff\xff"))
    found = read_profile(path)
    assert found.notes[0].startswith("HLO of jit_f(1): at byte")
    assert found.schedule is None
