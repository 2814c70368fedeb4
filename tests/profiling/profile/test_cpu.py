"""Operations on the threads of a host, with and without names of devices."""

from pathlib import Path

import pytest

from profiling._profile.cpu import CpuOps
from profiling._profile.trace import OpEvent
from profiling._profile.xplane import read_space
from tests.profiling.xplanes import PS, Plane, cpu_profile, save

REGION = "ThreadpoolListener::StartRegion"
RENDEZVOUS = "all gather RendezvousKey{run_id=RunId: 0, global_devices=[0,1], n}"


def read(path: Path) -> tuple[tuple[OpEvent, ...], bool]:
    found = CpuOps()
    for plane in read_space(path).planes:
        for number, line in enumerate(plane.lines()):
            found.add(number, line)
    return found.found()


def test_devices_and_runs_that_are_named(tmp_path):
    ops, told = read(cpu_profile(tmp_path / "x.xplane.pb", steps=2))
    assert told
    assert {(op.device, op.run) for op in ops} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert {op.program for op in ops} == {"jit_step(7)"}
    assert [op.start for op in ops] == sorted(op.start for op in ops)


def test_an_operation_ends_where_other_threads_are_done_with_it(tmp_path):
    plane = Plane("/host:CPU")
    one, other = plane.line("tf_XLAEigen/1"), plane.line("tf_XLAEigen/2")
    stats = {"hlo_module": "m", "program_id": 0, "device_ordinal": 0, "run_id": 1}
    one.event("dot.1", 10, 1, hlo_op="dot.1", _p=77, **stats)
    other.event("end: dot.1", 49.5, 0.5, _c=77)
    ((op,), _) = read(save(tmp_path / "x.xplane.pb", plane))
    assert (op.start, op.end) == (10 * PS, 50 * PS)


def old_client(path: Path, *, steps: int, broken: int | None = None) -> Path:
    """As torch_xla's client writes: tasks hand on to each other, no device is named.

    Each device's run is a task with a matmul that ends in another thread's task, which
    goes on with an all-gather.
    """
    plane = Plane("/host:CPU")
    threads = [plane.line(f"tf_XLAEigen/{n}") for n in range(4)]
    stats = {"hlo_module": "step", "program_id": 0}
    for step in range(steps):
        for device in range(2):
            at, produced = 100.0 * step + device, 10 * step + device + 1
            first, second = threads[device], threads[2 + device]
            first.event(REGION, at, 0)
            first.event("dot.1", at + 1, 2, hlo_op="dot.1", _p=produced, **stats)
            second.event(REGION, at + 20, 0)
            second.event("end: dot.1", at + 21, 1, _c=produced)
            if step == broken and device == 0:
                continue
            name = "all-gather.2"
            second.event(name, at + 30, 10, hlo_op=name, _p=produced + 1000, **stats)
            second.event("Rendezvous", at + 31, 5, name=RENDEZVOUS)
    return save(path, plane)


def test_devices_that_are_not_named_are_told_by_who_hands_on_to_whom(tmp_path):
    ops, told = read(old_client(tmp_path / "x.xplane.pb", steps=3))
    assert told
    for run in (1, 2, 3):
        for device in (0, 1):
            of = [op for op in ops if (op.device, op.run) == (device, run)]
            assert [op.name for op in of] == ["dot.1", "all-gather.2"]
            assert of[0].start == (100 * (run - 1) + device + 1) * PS
            assert of[1].start == (100 * (run - 1) + device + 30) * PS


@pytest.mark.parametrize("woken", [False, True], ids=["alone", "wakes another"])
def test_a_task_that_is_posted_is_of_the_same_device(tmp_path, woken):
    """Also where the last task of a device wakes up another device's."""
    plane = Plane("/host:CPU")
    threads = [plane.line(f"tf_XLAEigen/{n}") for n in range(4)]
    stats = {"hlo_module": "step", "program_id": 0}
    record = "ThreadpoolListener::Record"
    for device in range(2):
        one, other = threads[device], threads[2 + device]
        one.event(REGION, 10 * device, 0, _c=90 + device)
        one.event("dot.1", 10 * device + 1, 5, hlo_op="dot.1", **stats)
        one.event("Rendezvous", 10 * device + 2, 1, name=RENDEZVOUS)
        one.event(record, 10 * device + 6, 0, _p=device + 1)
        if woken:
            one.event(record, 10 * device + 7, 0, _p=91 - device)
        other.event(REGION, 10 * device + 8, 0, _c=device + 1)
        other.event("add.2", 10 * device + 9, 5, hlo_op="add.2", **stats)
    ops, told = read(save(tmp_path / "x.xplane.pb", plane))
    assert told
    assert [(op.name, op.device) for op in ops] == [
        ("dot.1", 0),
        ("add.2", 0),
        ("dot.1", 1),
        ("add.2", 1),
    ]


def test_where_executions_differ_operations_are_shared_out(tmp_path):
    ops, told = read(old_client(tmp_path / "x.xplane.pb", steps=3, broken=1))
    assert not told
    assert {op.device for op in ops} == {0, 1}
    assert len(ops) == 11


@pytest.mark.parametrize(("cut", "first"), [(0, 100), (2, 0)], ids=["start", "end"])
def test_executions_that_the_capture_cut_off_are_left_out(tmp_path, cut, first):
    ops, told = read(old_client(tmp_path / "x.xplane.pb", steps=3, broken=cut))
    assert told
    assert len(ops) == 8
    assert ops[0].start == (first + 1) * PS
    assert {(op.device, op.run) for op in ops} == {(0, 1), (1, 1), (0, 2), (1, 2)}


def test_a_host_without_a_device(tmp_path):
    plane = Plane("/host:CPU")
    plane.line("python").event("isinstance", 0, 1)
    assert read(save(tmp_path / "x.xplane.pb", plane)) == ((), True)


@pytest.mark.parametrize("steps", [1, 4])
def test_loops_run_operations_several_times(tmp_path, steps):
    plane = Plane("/host:CPU")
    line = plane.line("tf_XLAEigen/1")
    for step in range(steps):
        line.event(REGION, 100 * step, 0)
        for i in range(3):
            at = 100 * step + 10 * i + 1
            line.event("add.1", at, 5, hlo_op="add.1", hlo_module="m", program_id=0)
    ops, told = read(save(tmp_path / "x.xplane.pb", plane))
    assert told
    assert [op.run for op in ops] == [1 + i // 3 for i in range(3 * steps)]
