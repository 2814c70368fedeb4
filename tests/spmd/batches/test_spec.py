"""Which spec each tensor of a batch gets."""

from typing import NamedTuple

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from spmd import Mesh
from spmd._batches.spec import choose, default_entries, left_text

MESH = Mesh({"replica": 2, "fsdp": 2, "tensor": 2})
DATA = ("replica", "fsdp")


class Pair(NamedTuple):
    x: object
    y: object


def specs(batch, spec=None, mesh=MESH):
    leaves = [leaf for leaf in choose(batch, mesh, spec) if leaf is not None]
    return {leaf.path.removeprefix("batch"): leaf.spec for leaf in leaves}


def left(batch, spec=None, mesh=MESH):
    leaves = choose(batch, mesh, spec)
    return [leaf.path.removeprefix("batch") for leaf in leaves if leaf and leaf.left]


@pytest.mark.parametrize("rank", range(1, 6))
def test_dim_0_is_split_whatever_the_rank(rank):
    assert specs(torch.ones([8] * rank)) == {"": (DATA, *[None] * (rank - 1))}


@pytest.mark.parametrize(
    ("spec", "two_dims", "one_dim"),
    [
        ("fsdp", ("fsdp", None), ("fsdp",)),
        (("fsdp",), ("fsdp", None), ("fsdp",)),
        ((DATA, "tensor"), (DATA, "tensor"), (DATA,)),
        ([DATA, "tensor", None], (DATA, "tensor"), (DATA,)),
        ((0, 2), ("replica", "tensor"), ("replica",)),
        ([Shard(0), Shard(0), Replicate()], (DATA, None), (DATA,)),
        ([Shard(0), Shard(0), Shard(1)], (DATA, "tensor"), (DATA,)),
    ],
)
def test_a_spec_is_extended_and_cut_to_the_rank(spec, two_dims, one_dim):
    batch = {"ids": torch.ones(8, 4), "labels": torch.ones(8), "step": torch.tensor(1)}
    found = specs(batch, spec)
    assert found == {"['ids']": two_dims, "['labels']": one_dim, "['step']": ()}


def test_specs_of_other_libraries():
    jax = pytest.importorskip("jax")
    found = specs(torch.ones(8, 4), jax.sharding.PartitionSpec("fsdp"))
    assert found == {"": ("fsdp", None)}


def test_specs_by_key():
    batch = {"ids": torch.ones(8, 4), "mask": torch.ones(5, 5), "n": [torch.ones(6)]}
    spec = {"mask": None, "n": {0: "tensor"}}
    wanted = {
        "['ids']": (DATA, None),
        "['mask']": (None, None),
        "['n'][0]": ("tensor",),
    }
    assert specs(batch, spec) == wanted
    assert left(batch, spec) == []
    assert specs(Pair(torch.ones(8), torch.ones(2)), {"y": None})[".y"] == (None,)


def test_a_spec_by_key_holds_for_all_below_it():
    batch = {"x": {"a": torch.ones(8, 4), "b": torch.ones(8)}, "y": torch.ones(8)}
    found = specs(batch, {"x": ("fsdp", "tensor")})
    assert found["['x']['a']"] == ("fsdp", "tensor")
    assert found["['x']['b']"] == ("fsdp",)
    assert found["['y']"] == (DATA,)


def test_dims_of_size_1_are_not_split_by_default():
    batch = (torch.ones(8, 1, 4), torch.ones(8, 6, 4))
    found = specs(batch, (DATA, "tensor"))
    assert found == {"[0]": (DATA, None, None), "[1]": (DATA, "tensor", None)}


@pytest.mark.parametrize(
    ("batch", "wanted"),
    [
        ({"ids": torch.ones(8, 4), "pos": torch.ones(1, 4)}, ["['pos']"]),
        ({"pos": torch.ones(1, 4), "ids": torch.ones(8, 4)}, ["['pos']"]),
        ([torch.ones(8), torch.ones(8), torch.ones(16)], ["[2]"]),
        ([torch.ones(8), torch.tensor(1.0), 7, "text"], []),
    ],
)
def test_what_is_not_split_is_left_over(batch, wanted):
    assert left(batch) == wanted


def test_a_broadcast_row_keeps_the_split_of_its_other_dims():
    batch = {"ids": torch.ones(8, 4), "pos": torch.ones(1, 4), "bias": torch.ones(4, 4)}
    found = specs(batch, (DATA, "tensor"))
    assert found["['pos']"] == (None, "tensor")
    assert found["['bias']"] == (None, None)
    assert left(batch, (DATA, "tensor")) == ["['pos']", "['bias']"]


def test_labels_without_the_split_dim_are_left_over():
    assert left((torch.ones(8, 4), torch.ones(8)), (None, "tensor")) == ["[1]"]


def test_nothing_is_left_over_where_nothing_splits():
    mesh = Mesh({"fsdp": 1, "tensor": 8})
    assert left({"ids": torch.ones(8, 4), "pos": torch.ones(1, 4)}, mesh=mesh) == []


def test_the_warning_names_every_path_with_its_shape():
    batch = {"ids": torch.ones(8, 4), "pos": torch.ones(1, 4), "w": torch.ones(9)}
    text = left_text([leaf for leaf in choose(batch, MESH, None) if leaf], 8)
    assert "batch['pos'] [1, 4], batch['w'] [9] (the batch has 8 rows)" in text
    assert "spec={'pos': None}" in text
    assert left_text([], 8) is None


def test_a_mesh_without_data_axes_needs_a_spec():
    mesh = Mesh({"x": 4, "y": 2})
    with pytest.raises(
        ValueError, match=r"none of the axes of Mesh\(x=4, y=2\) is a data"
    ):
        choose(torch.ones(8), mesh, None)
    assert specs({"a": torch.ones(8), "n": 1}, {"a": "x"}, mesh) == {"['a']": ("x",)}
    assert default_entries("x", mesh) == ("x",)


def test_specs_that_are_none():
    with pytest.raises(TypeError, match="spec 7 is a int; an axis name, a tuple"):
        choose(torch.ones(8), MESH, 7)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("fdsp", r"batch\['ids'\] \[8, 4\]: .*'fdsp'.* did you mean 'fsdp'"),
        (("fsdp", "fsdp"), "uses mesh axis 'fsdp' 2 times"),
        ({"idz": "fsdp"}, r"batch has no 'idz', only \['ids'\].* did you mean 'ids'"),
        ({"ids": ("fsdp", None, None)}, "has 3 entries for 2 dims"),
        ({"ids": {"deeper": None}}, r"batch\['ids'\] is a Tensor without keys"),
    ],
)
def test_specs_that_do_not_fit(spec, text):
    with pytest.raises(ValueError, match=text):
        choose({"ids": torch.ones(8, 4)}, MESH, spec)
