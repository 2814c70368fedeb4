"""How many rows a batch must have, and what is said where it has not."""

import pytest
import torch

from spmd import Mesh
from spmd._batches.padding import check_pad, pad_leaves
from spmd._batches.spec import choose

MESH = Mesh({"fsdp": 8})
ONE = (tuple(range(8)),)
TWO = ((0, 1, 2, 3), (4, 5, 6, 7))


def padded(batch, spec=None, *, pad=False, values=None, hosts=ONE, mesh=MESH):
    leaves = choose(batch, mesh, spec)
    check_pad([leaf for leaf in leaves if leaf], pad, values)
    done = pad_leaves(leaves, mesh, hosts, host=0, pad=pad, values=values)
    return [leaf.tensor for leaf in done if leaf is not None]


@pytest.mark.parametrize(
    ("rows", "pad", "wanted"),
    [
        (8, False, 8),
        (8, True, 8),
        (9, True, 16),
        (3, True, 8),
        (3, 20, 24),
        (32, 20, 32),
    ],
)
def test_rows_after_padding(rows, pad, wanted):
    assert padded(torch.ones(rows, 2), pad=pad)[0].shape == (wanted, 2)


def test_a_process_needs_rows_for_its_own_shards_only():
    assert padded(torch.ones(4), hosts=TWO)[0].shape == (4,)
    with pytest.raises(
        ValueError, match=r"4 shards of 'fsdp' on this process \(8 in all"
    ):
        padded(torch.ones(6), hosts=TWO)


def test_meta_tensors_are_the_whole():
    with pytest.raises(ValueError, match="smaller than the 8 shards of 'fsdp'"):
        padded(torch.ones(4, device="meta"), hosts=TWO)


def test_values_by_key():
    batch = {"ids": torch.arange(3), "labels": torch.arange(3)}
    ids, labels = padded(batch, pad=True, values={"labels": -100})
    assert ids.tolist() == [0, 1, 2, 2, 2, 2, 2, 2]
    assert labels.tolist() == [0, 1, 2] + [-100] * 5


def test_one_tensor_under_two_keys_stays_one():
    tensor = torch.arange(3)
    ids, labels = padded({"ids": tensor, "labels": tensor}, pad=True)
    assert ids is labels


def test_only_tensors_with_rows_are_padded():
    shapes = [
        tuple(t.shape) for t in padded([torch.ones(3), torch.ones(1, 2)], pad=True)
    ]
    assert shapes == [(8,), (1, 2)]


def test_a_spec_by_key_pads_to_its_own_multiple():
    batch = {"x": torch.ones(3), "patches": torch.ones(20)}
    shapes = [len(t) for t in padded(batch, {"patches": "fsdp"}, pad=16)]
    assert shapes == [16, 24]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (12, r"batch\['x'\] \[12, 2\]: 12 rows .* the 8 shards of 'fsdp'; use 8 or 16"),
        (12, r"drop_last=True in a DataLoader\), or pad=True"),
        (5, "a batch of 5 rows is smaller than the 8 shards of 'fsdp'; use 8 rows or"),
        (0, "a batch of 0 rows is smaller than the 8 shards"),
    ],
)
def test_rows_that_do_not_divide(rows, text):
    with pytest.raises(ValueError, match=text):
        padded({"x": torch.ones(rows, 2)})


def test_no_rows_are_fine_where_none_are_split():
    assert padded(torch.ones(0), mesh=Mesh({"fsdp": 1, "tensor": 8}))[0].shape == (0,)


def test_nothing_to_repeat():
    with pytest.raises(ValueError, match=r"batch \[0\] has no row to repeat"):
        padded(torch.ones(0), pad=True)


@pytest.mark.parametrize(
    ("pad", "values", "error", "text"),
    [
        (1.5, None, TypeError, "pad=1.5; True, False or a number of rows"),
        (-1, None, ValueError, "pad=-1; a number of rows is 0 or more"),
        (False, {"x": 0}, ValueError, "without pad=True adds no rows"),
        (True, {"y": 0}, ValueError, r"pad_values names 'y'; the batch has \['x'\]"),
        (
            True,
            {"x": -1},
            ValueError,
            r"batch\['x'\] is torch.uint8, which cannot hold -1",
        ),
    ],
)
def test_what_is_said_of_padding_is_checked(pad, values, error, text):
    with pytest.raises(error, match=text):
        padded({"x": torch.ones(8, dtype=torch.uint8)}, pad=pad, values=values)


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        (torch.bool, 1, True),
        (torch.bool, 2, False),
        (torch.int64, 0.5, False),
        (torch.bfloat16, 0.1, True),
    ],
)
def test_values_that_fit_a_dtype(dtype, value, fits):
    batch = {"x": torch.ones(7, dtype=dtype)}
    if fits:
        assert len(padded(batch, pad=True, values={"x": value})[0]) == 8
    else:
        with pytest.raises(ValueError, match="cannot hold"):
            padded(batch, pad=True, values={"x": value})
