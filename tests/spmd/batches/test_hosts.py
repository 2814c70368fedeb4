"""Which devices each host feeds; with one process, and with faked ones."""

import pytest
import torch

from spmd import Mesh
from spmd._batches import hosts as hosts_module
from spmd._torch_xla import seam


@pytest.fixture
def fresh_hosts():
    hosts_module.current_hosts.cache_clear()
    yield
    hosts_module.current_hosts.cache_clear()


def test_one_process_has_all_devices(fresh_hosts):
    assert hosts_module.current_hosts() == (tuple(range(8)),)
    assert hosts_module.host_index() == 0
    assert hosts_module.data_rank(Mesh({"fsdp": 8})) == (0, 1)


def test_exchange_gives_one_row_for_each_device():
    numbers = [0, -1, 2**62 + 1]
    assert hosts_module.exchange(numbers) == [numbers] * 8


def test_hosts_are_learnt_from_who_answers_for_each_device(fresh_hosts, monkeypatch):
    owners = [0, 0, 1, 1, 0, 0, 1, 1]
    monkeypatch.setattr(seam, "num_processes", lambda: 2)
    monkeypatch.setattr(seam, "process_index", lambda: 1)
    monkeypatch.setattr(seam, "local_devices", lambda: (2, 3, 7, 6))
    monkeypatch.setattr(hosts_module, "exchange", lambda _: [[o] for o in owners])
    assert hosts_module.current_hosts() == ((0, 1, 4, 5), (2, 3, 7, 6))


def test_exchange_on_the_devices_with_faked_owners(fresh_hosts, monkeypatch):
    """The real computation, each device speaking for a faked process."""
    real = seam.from_local_shards
    owners = torch.tensor([[0], [0], [1], [1], [0], [0], [1], [1]])

    def send(shards, *args, **kwargs):
        assert [s.tolist() for s in shards] == [[[0]]] * 8
        return real(list(owners.split(1)), *args, **kwargs)

    seam.num_devices()
    monkeypatch.setattr(seam, "from_local_shards", send)
    monkeypatch.setattr(seam, "num_processes", lambda: 2)
    monkeypatch.setattr(seam, "local_devices", lambda: (0, 1, 2, 3, 4, 5, 6, 7))
    assert hosts_module.current_hosts()[1] == (2, 3, 6, 7)


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
    monkeypatch.setattr(hosts_module, "current_hosts", lambda: hosts)
    monkeypatch.setattr(hosts_module, "host_index", lambda: 1)
    assert hosts_module.data_rank(mesh, spec) == wanted


def test_data_rank_names_an_unknown_axis():
    with pytest.raises(ValueError, match=r"data_rank.*'fdsp'.*did you mean 'fsdp'"):
        hosts_module.data_rank(Mesh({"fsdp": 8}), "fdsp")


def test_data_rank_wants_a_mesh_of_this_machine():
    with pytest.raises(ValueError, match=r"data_rank: Mesh\(fsdp=4\) has 4 devices"):
        hosts_module.data_rank(Mesh({"fsdp": 4}))
