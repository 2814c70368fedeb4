import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs

from spmd import Mesh
from spmd._meshes.sharding import HloSharding
from spmd._meshes.spec import normalize_spec
from spmd._torch_xla import seam
from tests.on_device import as_tiles, native, on_device, sync

MESHES = [
    Mesh({"fsdp": 8}),
    Mesh({"replica": 2, "fsdp": 4}),
    Mesh({"a": 2, "b": 2, "c": 2}),
    Mesh({"one": 1, "fsdp": 8}),
    Mesh([3, 1, 0, 2, 7, 6, 5, 4], (4, 2), ("x", "y")),
]


def test_another_version_is_refused(monkeypatch):
    seam.check_version()
    monkeypatch.setattr(torch_xla, "__version__", "2.10.0")
    with pytest.raises(
        RuntimeError, match=r"against torch_xla 2\.9\.\*, this is 2\.10"
    ):
        seam.check_version()


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_a_spec_is_the_same_sharding_as_torch_xlas_own(mesh):
    other = xs.Mesh(list(mesh.device_ids), mesh.shape, mesh.axis_names)
    first, last = mesh.axis_names[0], mesh.axis_names[-1]
    specs = [
        (None, None),
        (first, None),
        (None, last),
        (mesh.axis_names, None),
        (mesh.axis_names[::-1], None),
    ]
    specs += [] if first == last else [(first, last), (last, first)]
    for given in specs:
        ours, theirs = on_device(16, 16), on_device(16, 16)
        spec = normalize_spec(given, mesh, shape=(16, 16))
        seam.mark(ours, mesh, spec)
        xs.mark_sharding(theirs, other, given)
        a, b = native(ours), native(theirs)
        assert a == as_tiles(mesh, spec)
        if not a.is_replicated:
            # Which replica is which inside a tile is free.
            tiles = [_tile_of(s) for s in (a, b)]
            assert tiles[0] == tiles[1], given


def _tile_of(sharding: HloSharding) -> dict[int, tuple[int, ...]]:
    dims = len(sharding.tile_shape) - sharding.replicate_last
    ids = sharding.tiles()
    where = {}
    for index, _ in enumerate(ids.reshape(-1)):
        at = tuple(int(i) for i in torch.unravel_index(torch.tensor(index), ids.shape))
        where[int(ids[at])] = at[:dims]
    return where


def test_a_sharding_object_is_made_once():
    mesh = Mesh({"fsdp": 8})
    one = seam.op_sharding(mesh, ("fsdp", None))
    assert seam.op_sharding(Mesh({"fsdp": 8}), ("fsdp", None)) is one


def test_sharding_of_unmarked_data_is_none():
    assert seam.sharding_of(on_device(8)) is None


def test_local_shards_of_a_value_that_was_not_computed_yet():
    mesh = Mesh({"fsdp": 8})
    value = on_device(8, 2) * 2
    seam.mark(value, mesh, ("fsdp", None))
    shards = seam.local_shards(value)
    assert [data.tolist() for _, data, *_ in shards][7] == [[28.0, 30.0]]
    shards = seam.local_shards(on_device(8, 2) * 2)
    assert [tuple(data.shape) for _, data, *_ in shards] == [(8, 2)] * 8


@pytest.mark.parametrize("mark", [False, True])
def test_local_shards_of_replicated_data(mark):
    tensor = on_device(4, 2)
    if mark:
        seam.mark(tensor, Mesh({"fsdp": 8}), (None, None))
    shards = seam.local_shards(tensor)
    assert [device for device, *_ in shards] == list(range(8))
    for _, data, _, part in shards:
        assert part == (slice(0, 4), slice(0, 2))
        assert torch.equal(data, torch.arange(8.0).reshape(4, 2))


def test_local_shards_number_the_replicas():
    mesh = Mesh({"replica": 2, "fsdp": 4})
    tensor = on_device(8)
    seam.mark(tensor, mesh, ("fsdp",))
    shards = seam.local_shards(tensor)
    assert [replica for _, _, replica, _ in shards] == [0] * 4 + [1] * 4
    parts = [part for *_, part in shards]
    assert parts[:4] == parts[4:] == [(slice(i, i + 2),) for i in range(0, 8, 2)]


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_pieces_make_the_whole_again(mesh):
    whole = torch.arange(32.0).reshape(16, 2)
    spec = normalize_spec((mesh.axis_names, None), mesh, shape=whole.shape)
    tensor = whole.to("xla")
    seam.mark(tensor, mesh, spec)
    pieces = {device: data for device, data, *_ in seam.local_shards(tensor)}
    ordered = [pieces[d] for d in seam.local_devices()]
    back = seam.from_local_shards(ordered, mesh, spec, shape=(16, 2))
    assert torch.equal(back.cpu(), whole)
    assert native(back) == as_tiles(mesh, spec)


def test_the_process_and_its_devices():
    assert seam.num_devices() == 8
    assert seam.local_devices() == tuple(range(8))
    assert (seam.process_index(), seam.num_processes()) == (0, 1)
    assert seam.device().type == "xla"
    assert seam.spmd_is_on() and seam.runtime_is_up()
    assert seam.device_was_used()


def test_autograd_works_here():
    assert seam.autograd_works()


def test_a_seed_is_noticed():
    before = xm.get_rng_state()
    try:
        torch_xla.manual_seed(7)
        assert seam.seed_was_set()
    finally:
        xm.set_rng_state(before)


def test_the_global_mesh(monkeypatch):
    assert seam.global_mesh() is None
    mesh = xs.Mesh(list(range(8)), (8,), ("fsdp",))
    monkeypatch.setattr(xs.xla_sharding, "_GLOBAL_MESH", mesh)
    assert seam.global_mesh() is mesh


def test_a_barrier_keeps_values():
    x = on_device(4) * 2
    seam.optimization_barrier([x])
    assert x.cpu().tolist() == [0.0, 2.0, 4.0, 6.0]


def test_a_closure_runs_once_at_the_end_of_the_step():
    called: list[int] = []
    seam.at_step_end(lambda: called.append(1))
    assert not called
    for _ in range(2):
        sync()
    assert called == [1]


def test_tensors_are_copied_to_the_host_in_one_go():
    data = torch.arange(4.0).to("xla")
    found = seam.to_host([data, data * 2])
    assert [tensor.device.type for tensor in found] == ["cpu", "cpu"]
    assert [tensor.tolist() for tensor in found] == [[0, 1, 2, 3], [0, 2, 4, 6]]
