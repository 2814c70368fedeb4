import torch

from spmd._host_spans import WAIT, counts
from spmd._torch_xla import graph as torch_xla_graph
from spmd._torch_xla import profile
from tests.on_device import on_device


def test_a_session_records_what_ran_inside():
    value = on_device(4)
    session = profile.Session()
    assert profile.is_recording()
    (value + 1).cpu()
    profile.wait()
    space = session.stop()
    assert not profile.is_recording()
    assert b"hlo_op" in space


def test_waiting_for_a_capture_is_no_wait_of_the_run():
    on_device(4)
    before = counts().get(WAIT, 0)
    profile.wait()
    assert counts().get(WAIT, 0) == before


def test_this_process_is_the_only_one():
    torch.ones(2, device="xla")
    profile.start_runtime()
    assert profile.is_up() and profile.team() == (0, 1)


def test_waiting_draws_no_random_numbers():
    on_device(4).add(1).cpu()
    before = torch_xla_graph.seed()
    profile.wait()
    assert torch_xla_graph.seed() == before


def test_a_session_knows_whether_devices_worked():
    value = on_device(8)
    profile.wait()
    session = profile.Session()
    assert not session.worked()
    torch_xla_graph.execute([value + 1])
    assert session.worked()
    session.stop()
