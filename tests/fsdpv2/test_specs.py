import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fsdpv2._specs import MIN_SHARD_ELEMENTS, batch_axes, parameter_spec
from spmd import Mesh
from spmd._meshes.spec import num_shards

FLAT = Mesh({"fsdp": 8})


def spec_of(shape, mesh=FLAT, min_elements=1):
    return parameter_spec(shape, mesh, axis="fsdp", min_elements=min_elements)


@pytest.mark.parametrize(
    "shape, spec",
    [
        ((16, 8), ("fsdp", None)),  # the largest
        ((8, 16), (None, "fsdp")),
        ((16, 16), ("fsdp", None)),  # ties: the first
        ((8, 16, 16), (None, "fsdp", None)),
        ((17, 16), (None, "fsdp")),  # the largest that divides
        ((50257, 768), (None, "fsdp")),
        ((9, 17), (None, "fsdp")),  # none divides: the largest, padded
        ((3, 5), (None, None)),  # none is longer than the axis
        ((1, 7), (None, None)),
        ((8,), ("fsdp",)),
        ((0, 8), (None, "fsdp")),
        ((), ()),
    ],
)
def test_the_dim_that_is_split(shape, spec):
    assert spec_of(shape) == (spec if math.prod(shape) else (None,) * len(shape))


@pytest.mark.parametrize(
    ("shape", "spec"),
    [((64, 16), (None, "fsdp")), ((64, 12), ("fsdp", None)), ((2, 2), (None, None))],
)
def test_a_table_is_split_on_its_columns(shape, spec):
    given = {"axis": "fsdp", "min_elements": 1, "is_table": True}
    assert parameter_spec(shape, FLAT, **given) == spec


@pytest.mark.parametrize("elements, split", [(4095, False), (4096, True)])
def test_small_parameters_stay_whole(elements, split):
    spec = spec_of((elements,), Mesh({"fsdp": 1}), MIN_SHARD_ELEMENTS)
    assert (spec == ("fsdp",)) is split


def test_only_the_fsdp_axis_splits_parameters():
    mesh = Mesh({"replica": 2, "fsdp": 4})
    assert spec_of((12, 20), mesh) == (None, "fsdp")


@given(
    shape=st.lists(st.integers(0, 40), max_size=4).map(tuple),
    size=st.integers(1, 9),
    least=st.integers(1, 500),
)
def test_at_most_one_dim_and_never_a_short_one(shape, size, least):
    mesh = Mesh({"fsdp": size})
    spec = spec_of(shape, mesh, least)
    assert len(spec) == len(shape)
    split = [d for d, e in enumerate(spec) if e]
    assert len(split) <= 1
    if math.prod(shape) < least:
        assert not split
    for d in split:
        assert shape[d] >= size
        ways = num_shards(mesh, spec)[d]
        better = [s for s in shape if s % ways == 0]
        assert shape[d] == max(better or shape)


@pytest.mark.parametrize(
    "sizes, extra, axes",
    [
        ({"fsdp": 8}, None, ("fsdp",)),
        ({"replica": 2, "fsdp": 4}, None, ("replica", "fsdp")),
        ({"replica": 2, "fsdp": 4}, "replica", ("replica", "fsdp")),
        ({"fsdp": 2, "tensor": 4}, None, ("fsdp",)),
        ({"mine": 2, "fsdp": 4}, None, ("fsdp",)),
        ({"mine": 2, "fsdp": 4}, "mine", ("mine", "fsdp")),
        ({"fsdp": 4, "mine": 2}, "mine", ("fsdp", "mine")),
        ({"dcn": 2, "replica": 2, "fsdp": 2}, None, ("dcn", "replica", "fsdp")),
    ],
)
def test_the_axes_that_split_the_batch(sizes, extra, axes):
    assert batch_axes(Mesh(sizes), extra, axis="fsdp") == axes


@pytest.mark.parametrize(
    "sizes, extra, missing",
    [({"data": 8}, None, "fsdp"), ({"fsdp": 8}, "replica", "replica")],
)
def test_an_axis_the_mesh_lacks(sizes, extra, missing):
    with pytest.raises(ValueError, match=rf"FSDPv2: the mesh has no axis '{missing}'"):
        batch_axes(Mesh(sizes), extra, axis="fsdp")
