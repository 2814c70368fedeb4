"""Which rows go where, against brute force over faked hosts."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmd import Mesh
from spmd._batches.rows import host_part, host_tiles, place
from spmd._meshes.spec import shard_shape, shard_slices

TWO = ((0, 1, 2, 3), (4, 5, 6, 7))
FOUR = ((0, 1), (2, 3), (4, 5), (6, 7))
TORUS = ((0, 1, 4, 5), (2, 3, 6, 7))  # device ids of a v5e:2x4: hosts are squares
REVERSED = Mesh([7, 6, 5, 4, 3, 2, 1, 0], (8,), ("fsdp",))
SHUFFLED = Mesh([2, 3, 0, 1, 6, 7, 4, 5], (4, 2), ("fsdp", "tensor"))


def whole_and_parts(mesh, spec, hosts, local_rows, rest=(3, 4)):
    """A whole in which every element differs, and what each host would load of it.

    The reference knows only `shard_slices`: a host loads, in ascending order, each row
    that one of its devices holds.
    """
    shards = mesh.axis_size(() if spec[0] is None else spec[0])
    tiles = len(host_tiles(mesh, spec[0], hosts)[0])
    shape = (local_rows * shards // tiles, *rest)
    whole = np.arange(math.prod(shape)).reshape(shape)
    parts = []
    for host in hosts:
        rows = set()
        for device in host:
            part = shard_slices(shape, mesh, spec, device=device)[0]
            rows |= set(range(part.start, part.stop))
        parts.append(whole[sorted(rows)])
    return whole, parts


@pytest.mark.parametrize("hosts", [TWO, FOUR, TORUS, (tuple(range(8)),)])
@pytest.mark.parametrize(
    ("mesh", "spec"),
    [
        (Mesh({"fsdp": 8}), ("fsdp", None, None)),
        (REVERSED, ("fsdp", None, None)),
        (Mesh({"replica": 2, "fsdp": 4}), (("replica", "fsdp"), None, None)),
        (Mesh({"replica": 2, "fsdp": 4}), (("fsdp", "replica"), None, None)),
        (Mesh({"replica": 2, "fsdp": 4}), ("fsdp", None, None)),
        (Mesh({"replica": 2, "fsdp": 4}), ("replica", None, None)),
        (Mesh({"fsdp": 4, "tensor": 2}), ("fsdp", "tensor", None)),
        (Mesh({"tensor": 2, "fsdp": 4}), ("fsdp", "tensor", None)),
        (Mesh({"tensor": 4, "fsdp": 2}), ("fsdp", None, "tensor")),
        (SHUFFLED, ("fsdp", None, "tensor")),
        (Mesh({"a": 2, "b": 2, "c": 2}), (("c", "a"), None, "b")),
        (Mesh({"fsdp": 8}), (None, "fsdp", None)),
        (Mesh({"fsdp": 8}), (None, None, None)),
    ],
)
def test_every_device_gets_the_rows_of_its_piece(mesh, spec, hosts):
    whole, parts = whole_and_parts(mesh, spec, hosts, 8)
    for index, host in enumerate(hosts):
        placement = place(parts[index].shape, mesh, spec, hosts=hosts, host=index)
        assert placement.shape == whole.shape
        assert placement.piece_shape == shard_shape(whole.shape, mesh, spec)
        rows = [r for start, stop in placement.rows for r in range(start, stop)]
        np.testing.assert_array_equal(whole[rows], parts[index])
        for device, piece in zip(host, placement.pieces, strict=True):
            wanted = whole[shard_slices(whole.shape, mesh, spec, device=device)]
            np.testing.assert_array_equal(parts[index][piece], wanted)


@given(
    shape=st.permutations([("replica", 2), ("fsdp", 2), ("tensor", 2)]),
    order=st.permutations(range(8)),
    split=st.lists(st.sampled_from(["replica", "fsdp", "tensor"]), unique=True),
    hosts=st.sampled_from([TWO, FOUR, TORUS]),
)
def test_random_meshes_use_each_row_once_a_part(shape, order, split, hosts):
    names, sizes = zip(*shape, strict=True)
    mesh = Mesh(list(order), sizes, names)
    entry = tuple(split) or None
    try:
        tiles = host_tiles(mesh, entry, hosts)
    except ValueError:
        return
    assert len({len(t) for t in tiles}) == 1
    parts = sorted(set(tiles))
    assert sorted(itertools.chain(*parts)) == list(range(mesh.axis_size(split)))
    for host in range(len(hosts)):
        assert host_part(mesh, entry, hosts, host=host) == (
            parts.index(tiles[host]),
            len(parts),
        )
        placement = place((len(tiles[0]) * 2,), mesh, (entry,), hosts=hosts, host=host)
        rows = [r for start, stop in placement.rows for r in range(start, stop)]
        assert rows == [r for t in tiles[host] for r in (2 * t, 2 * t + 1)]


def test_neighbouring_tiles_are_one_stretch():
    mesh, spec = Mesh({"fsdp": 8}), ("fsdp",)
    assert place((8,), mesh, spec, hosts=TWO, host=1).rows == ((8, 16),)
    assert place((8,), mesh, spec, hosts=TORUS, host=1).rows == ((4, 8), (12, 16))


def test_scalars_go_whole_to_each_device():
    placement = place((), Mesh({"fsdp": 8}), (), hosts=TWO, host=1)
    assert placement.pieces == ((), (), (), ())


def test_uneven_other_dims_are_padded_in_every_piece():
    mesh = Mesh({"fsdp": 2, "seq": 4})
    placement = place((4, 5), mesh, ("fsdp", "seq"), hosts=TWO, host=1)
    assert placement.piece_shape == (4, 2)
    assert [p[1] for p in placement.pieces] == [
        slice(0, 2),
        slice(2, 4),
        slice(4, 5),
        slice(5, 5),
    ]


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="6 rows do not divide over the 4 shards of"):
        place((6,), Mesh({"fsdp": 8}), ("fsdp",), hosts=TWO)


def test_hosts_must_be_all_devices():
    with pytest.raises(ValueError, match="must belong to exactly one host"):
        host_tiles(Mesh({"fsdp": 8}), "fsdp", TWO[:1])


def test_hosts_that_share_some_rows_only_are_refused():
    # Tiles of devices 0..7: 0 0 1 1 2 2 3 3, so hosts of 3 and 5 devices share tile 1.
    mesh = Mesh({"fsdp": 4, "tensor": 2})
    with pytest.raises(ValueError, match="both hold rows of tile 1"):
        host_tiles(mesh, "fsdp", ((0, 1, 2), (3, 4, 5, 6, 7)))


def test_hosts_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="host 1 6; every host must load equally many"):
        host_tiles(Mesh({"fsdp": 8}), "fsdp", ((0, 1), (2, 3, 4, 5, 6, 7)))
