from __future__ import annotations

import itertools
import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import (
    entry_axes,
    normalize_spec,
    num_shards,
    padded_elements,
    shard_shape,
    shard_slices,
    spec_axes,
    uneven_dims,
)
from tests.spmd.strategies import meshes_and_specs, tile_of, walk

MESH = Mesh({"replica": 2, "fsdp": 4, "tensor": 2})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (("fsdp", None), ("fsdp", None)),
        ((("fsdp",), ()), ("fsdp", None)),
        ([["replica", "fsdp"], None], (("replica", "fsdp"), None)),
        ((1, (0, 2)), ("fsdp", ("replica", "tensor"))),
        ((np.int64(1), None), ("fsdp", None)),
        ((("tensor", "fsdp"), "replica"), (("tensor", "fsdp"), "replica")),
        ((e for e in ("fsdp", None)), ("fsdp", None)),
    ],
)
def test_normalize(spec: Any, expected: tuple[Any, ...]) -> None:
    got = normalize_spec(spec, MESH, shape=(8, 8))
    assert got == expected
    assert normalize_spec(got, MESH, shape=(8, 8)) == got


def test_normalize_without_a_shape_takes_any_length() -> None:
    assert normalize_spec(("fsdp", None, None), MESH, shape=None) == (
        "fsdp",
        None,
        None,
    )
    assert normalize_spec((), MESH, shape=()) == ()


@pytest.mark.parametrize(
    ("spec", "error", "match"),
    [
        (
            "fsdp",
            TypeError,
            r"w \[8, 4\]: a spec is a tuple.*write e.g. \('fsdp', None\)",
        ),
        (None, TypeError, "a spec is a tuple with one entry per dim, got None"),
        ({"fsdp": 0, "x": 1}, TypeError, "a spec is a tuple with one entry per dim"),
        ({"fsdp"}, TypeError, "a spec is a tuple with one entry per dim"),
        (("fsdp",), ValueError, r"w \[8, 4\]: spec .* has 1 entries for 2 dims"),
        (("fsdp", None, None), ValueError, "has 3 entries for 2 dims"),
        (("fdsp", None), ValueError, "axis 'fdsp'.*'fsdp': 4.*did you mean 'fsdp'"),
        (("zzz", None), ValueError, "axis 'zzz', but the mesh has .*}$"),
        (("fsdp", "fsdp"), ValueError, "uses mesh axis 'fsdp' 2 times"),
        ((("fsdp", "fsdp"), None), ValueError, "uses mesh axis 'fsdp' 2 times"),
        ((3, None), ValueError, "axis index 3 in the spec; the mesh has 3 axes"),
        ((-1, None), ValueError, "axis index -1 in the spec"),
        ((("fsdp", None), None), TypeError, "may hold axis names only"),
        ((("fsdp", ("a", "b")), None), TypeError, "may hold axis names only"),
        ((1.0, None), TypeError, "spec entry 1.0 is a float"),
        ((True, None), TypeError, "spec entry True is a bool"),
    ],
)
def test_wrong_specs(spec: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        normalize_spec(spec, MESH, shape=(8, 4), name="w")


def test_an_error_without_a_shape_names_the_tensor() -> None:
    with pytest.raises(ValueError, match=r"^out: spec"):
        normalize_spec(("nope",), MESH, shape=None, name="out")


def test_axes_of_entries_and_specs() -> None:
    assert entry_axes(None) == ()
    assert entry_axes("a") == ("a",)
    assert entry_axes(("a", "b")) == ("a", "b")
    assert spec_axes((("b", "a"), None, "c")) == ("b", "a", "c")


def test_a_dim_that_does_not_divide() -> None:
    mesh, spec = Mesh({"fsdp": 8}), ("fsdp", None)
    assert num_shards(mesh, spec) == (8, 1)
    assert shard_shape((9, 3), mesh, spec) == (2, 3)
    assert padded_elements((9, 3), mesh, spec) == 16 * 3 - 27
    assert uneven_dims((9, 3), mesh, spec) == ((0, 8),)
    assert uneven_dims((16, 3), mesh, spec) == ()
    held = [shard_slices((9, 3), mesh, spec, device=d)[0] for d in range(8)]
    assert [s.stop - s.start for s in held] == [2, 2, 2, 2, 1, 0, 0, 0]


def test_slices_of_a_device_elsewhere() -> None:
    with pytest.raises(ValueError, match="device 16 is not in Mesh"):
        shard_slices((8,), MESH, ("fsdp",), device=16)


@settings(deadline=None)
@given(st.data())
def test_slices_cover_the_tensor(data: st.DataObject) -> None:
    """Every element is held by exactly as many devices as there are copies."""
    mesh, spec = data.draw(meshes_and_specs(max_dims=3))
    shape = tuple(data.draw(st.integers(0, 9)) for _ in spec)
    ways = num_shards(mesh, spec)
    piece = shard_shape(shape, mesh, spec)
    copies = mesh.size // math.prod(ways)
    held = np.zeros(shape, dtype=int)
    padding = 0
    for device, place in walk(mesh):
        slices = shard_slices(shape, mesh, spec, device=device)
        starts = [t * n for t, n in zip(tile_of(mesh, spec, place), piece, strict=True)]
        sizes = [s.stop - s.start for s in slices]
        for part, start, size, whole in zip(slices, starts, sizes, piece, strict=True):
            assert 0 <= size <= whole
            assert part.start == start or size == 0
        held[slices] += 1
        padding += math.prod(piece) - math.prod(sizes)
    assert (held == copies).all()
    assert padding == copies * padded_elements(shape, mesh, spec)
    uneven = {dim for dim, _ in uneven_dims(shape, mesh, spec)}
    assert uneven == {
        i
        for i, (d, n, p) in enumerate(zip(shape, ways, piece, strict=True))
        if n * p != d
    }


@given(meshes_and_specs())
def test_number_of_shards_counts_tiles(mesh_and_spec: Any) -> None:
    mesh, spec = mesh_and_spec
    tiles = {tile_of(mesh, spec, place) for _, place in walk(mesh)}
    assert tiles == set(itertools.product(*map(range, num_shards(mesh, spec))))
