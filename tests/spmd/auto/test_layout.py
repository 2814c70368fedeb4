"""The axes of an automatic plan, and the specs that they make."""

from __future__ import annotations

import pytest

from spmd import Mesh
from spmd._auto.layout import Axes, choose_axes

MESH = Mesh({"fsdp": 2, "tensor": 4})


def chosen(mesh: Mesh = MESH, **options) -> Axes:
    given = {
        "fsdp": "fsdp",
        "tensor": "tensor",
        "expert": "expert",
        "sequence_parallel": False,
        "min_shard_elements": 1,
    }
    return choose_axes(mesh, **{**given, **options})


def test_usual_axes_may_be_missing():
    axes = chosen()
    assert (axes.fsdp, axes.tensor, axes.expert) == ("fsdp", "tensor", None)
    axes = chosen(Mesh({"expert": 8}))
    assert (axes.fsdp, axes.tensor, axes.expert) == (None, None, "expert")
    assert axes.ways == 1


@pytest.mark.parametrize(
    ("sizes", "options", "batch"),
    [
        ({"fsdp": 2, "tensor": 4}, {}, "fsdp"),
        ({"tensor": 8}, {}, None),
        ({"replica": 2, "fsdp": 2, "tensor": 2}, {}, ("replica", "fsdp")),
        ({"fsdp": 2, "expert": 2, "tensor": 2}, {}, ("fsdp", "expert")),
        ({"expert": 2, "data": 4}, {}, ("expert", "data")),  # in the mesh's order
        ({"data": 2, "tp": 4}, {"fsdp": None, "tensor": "tp"}, "data"),
        ({"data": 2, "fsdp": 4}, {"fsdp": None, "tensor": "fsdp"}, "data"),
    ],
    ids=str,
)
def test_every_axis_for_data_splits_the_batch(sizes, options, batch):
    axes = chosen(Mesh(sizes), **options)
    assert axes.batch == batch
    assert axes.whole == (batch, None, None)


@pytest.mark.parametrize(
    ("mesh", "options", "match"),
    [
        (MESH, {"tensor": "tp"}, r"tensor='tp', but .*; its axes are 'fsdp', 'tensor'"),
        (MESH, {"expert": "ep"}, "expert='ep', but .* has no such axis"),
        (Mesh({"data": 8}), {}, r"as in auto_plan\(model, mesh, fsdp='data'\)"),
        (Mesh({"fsdp": 8}), {"sequence_parallel": True}, "splits activations over the"),
    ],
)
def test_axes_that_are_not_there(mesh, options, match):
    with pytest.raises(ValueError, match=match):
        chosen(mesh, **options)


@pytest.mark.parametrize(
    ("options", "roles"),
    [
        ({"fsdp": "tensor"}, "fsdp and tensor"),
        ({"expert": "fsdp"}, "fsdp and expert"),
    ],
)
def test_one_axis_has_one_role(options, roles):
    with pytest.raises(ValueError, match=f"auto_plan: {roles} are both the axis"):
        chosen(**options)


def test_activations():
    axes, sequence = chosen(), chosen(sequence_parallel=True)
    assert axes.between == axes.whole == ("fsdp", None, None)
    assert sequence.between == ("fsdp", "tensor", None)
    assert sequence.whole == axes.whole
    assert sequence.columns == axes.columns == ("fsdp", None, "tensor")


@pytest.mark.parametrize(
    ("shape", "dim", "spec"),
    [
        ((64, 32), 0, ("tensor", "fsdp")),
        ((64, 32), 1, ("fsdp", "tensor")),
        ((64, 33), 0, (("tensor", "fsdp"), None)),  # 33 does not halve, 64 / 8 does
        ((4, 33), 0, ("tensor", None)),  # nor is there anything else
        ((126, 32), 0, ("tensor", "fsdp")),  # a vocabulary is padded
        ((16, 64, 6), 0, ("tensor", "fsdp", None)),  # on the longest
        ((16, 6, 6), 0, ("tensor", "fsdp", None)),  # of two the first
    ],
)
def test_a_weight_is_split_over_both(shape, dim, spec):
    assert chosen().weight(shape, dim) == spec


def test_without_fsdp_a_weight_is_split_over_tensor_alone():
    assert chosen(Mesh({"tensor": 4})).weight((64, 32), 0) == ("tensor", None)
    one = Mesh({"fsdp": 1, "tensor": 4})
    assert chosen(one).weight((64, 32), 0) == ("tensor", None)


@pytest.mark.parametrize(("least", "entry"), [(2048, "fsdp"), (2049, None)])
def test_small_weights_are_not_split_over_fsdp(least, entry):
    axes = chosen(min_shard_elements=least)
    assert axes.weight((64, 32), 0) == ("tensor", entry)


def test_other_parameters_stay_whole_beside_tensor():
    axes, alone = chosen(), chosen(Mesh({"fsdp": 2}))
    assert axes.parameter((64, 32)) == (None, None)
    assert alone.parameter((64, 32)) == ("fsdp", None)
    assert alone.parameter((64,)) == (None,)
    assert alone.parameter((3, 3)) == ("fsdp", None)  # XLA pads
    large = (2**14, 2**10)
    assert axes.parameter(large) == alone.parameter(large) == ("fsdp", None)


@pytest.mark.parametrize(
    ("shape", "dim_out", "spec"),
    [
        ((16, 64), 0, ("tensor", "fsdp")),
        ((6, 64), 0, ("fsdp", "tensor")),
        ((64, 6), 1, ("tensor", "fsdp")),
        ((6, 66), 0, (None, None)),
    ],
)
def test_a_matrix_that_is_gathered_is_split_where_it_divides(shape, dim_out, spec):
    assert chosen().matrix(shape, dim_out) == spec


def test_a_matrix_without_a_tensor_axis():
    assert chosen(Mesh({"fsdp": 2})).matrix((6, 64), 0) == (None, "fsdp")


@pytest.mark.parametrize(
    ("shape", "dim_out", "spec"),
    [((16, 64), 0, (None, "fsdp")), ((64, 16), 1, ("fsdp", None))],
)
def test_weights_to_repeat_are_whole_over_tensor(shape, dim_out, spec):
    assert chosen().repeated(shape, dim_out) == spec
    assert chosen().repeated((16, 63), 0) == (None, None)
