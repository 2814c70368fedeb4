"""Which devices each host feeds; with one process, and with faked ones."""

import pytest
import torch

from spmd import Mesh, _hosts, _torch_xla


@pytest.fixture
def fresh_hosts():
    _hosts.current_hosts.cache_clear()
    yield
    _hosts.current_hosts.cache_clear()


def test_one_process_has_all_devices(fresh_hosts):
    assert _hosts.current_hosts() == (tuple(range(8)),)
    assert _hosts.host_index() == 0
    assert _hosts.data_rank(Mesh({"fsdp": 8})) == (0, 1)


def test_exchange_gives_one_row_for_each_device():
    numbers = [0, -1, 2**62 + 1]
    assert _hosts.exchange(numbers) == [numbers] * 8


def test_hosts_are_learnt_from_who_answers_for_each_device(fresh_hosts, monkeypatch):
    owners = [0, 0, 1, 1, 0, 0, 1, 1]
    monkeypatch.setattr(_torch_xla, "num_processes", lambda: 2)
    monkeypatch.setattr(_torch_xla, "process_index", lambda: 1)
    monkeypatch.setattr(_torch_xla, "local_devices", lambda: (2, 3, 7, 6))
    monkeypatch.setattr(_hosts, "exchange", lambda _: [[o] for o in owners])
    assert _hosts.current_hosts() == ((0, 1, 4, 5), (2, 3, 7, 6))


def test_exchange_on_the_devices_with_faked_owners(fresh_hosts, monkeypatch):
    """The real computation, each device speaking for a faked process."""
    real = _torch_xla.from_local_shards
    owners = torch.tensor([[0], [0], [1], [1], [0], [0], [1], [1]])

    def send(shards, *args, **kwargs):
        assert [s.tolist() for s in shards] == [[[0]]] * 8
        return real(list(owners.split(1)), *args, **kwargs)

    _torch_xla.num_devices()
    monkeypatch.setattr(_torch_xla, "from_local_shards", send)
    monkeypatch.setattr(_torch_xla, "num_processes", lambda: 2)
    monkeypatch.setattr(_torch_xla, "local_devices", lambda: (0, 1, 2, 3, 4, 5, 6, 7))
    assert _hosts.current_hosts()[1] == (2, 3, 6, 7)


@pytest.mark.parametrize(
    ("mesh", "spec", "wanted"),
    [
        (Mesh({"fsdp": 8}), None, (1, 2)),
        (Mesh({"fsdp": 4, "tensor": 2}), None, (1, 2)),
        (Mesh({"tensor": 2, "fsdp": 4}), None, (0, 1)),
        (Mesh({"replica": 2, "fsdp": 4}), "fsdp", (0, 1)),
        (Mesh({"replica": 2, "fsdp": 4}), {"labels": None}, (1, 2)),
        (Mesh({"replica": 2, "fsdp": 4}), (), (0, 1)),
    ],
)
def test_data_rank(mesh, spec, wanted, monkeypatch):
    hosts = ((0, 1, 2, 3), (4, 5, 6, 7))
    monkeypatch.setattr(_hosts, "current_hosts", lambda: hosts)
    monkeypatch.setattr(_hosts, "host_index", lambda: 1)
    assert _hosts.data_rank(mesh, spec) == wanted


def test_data_rank_names_an_unknown_axis():
    with pytest.raises(ValueError, match=r"data_rank.*'fdsp'.*did you mean 'fsdp'"):
        _hosts.data_rank(Mesh({"fsdp": 8}), "fdsp")


def test_data_rank_wants_a_mesh_of_this_machine():
    with pytest.raises(ValueError, match=r"data_rank: Mesh\(fsdp=4\) has 4 devices"):
        _hosts.data_rank(Mesh({"fsdp": 4}))
