"""Leaves: what is taken in, what is refused, padding and cutting."""

import numpy as np
import pytest
import torch

from spmd import Mesh
from spmd._batches.leaf import as_tensor, cut, pad_rows
from spmd._batches.rows import place


@pytest.mark.parametrize("value", [None, "text", b"raw", 1, 2.5, True, np.float32(3)])
def test_other_leaves_are_no_tensors(value):
    assert as_tensor(value, "batch") is None


def test_arrays_of_text_pass_through():
    assert as_tensor(np.array(["a", "b"]), "batch") is None


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "f4", "f8", "c8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_numpy_arrays_become_tensors(dtype, shape):
    array = np.ones(shape, dtype)
    tensor = as_tensor(array, "batch")
    assert tensor.shape == shape
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_read_only_swapped_and_backward_arrays():
    array = np.arange(4, dtype=">i4")[::-1]
    array.flags.writeable = False
    assert as_tensor(array, "batch").tolist() == [3, 2, 1, 0]


def test_arrays_the_device_cannot_hold_are_refused():
    with pytest.raises(
        TypeError, match=r"batch\['t'\] \[2\] .* uint16.* cast it to int32"
    ):
        as_tensor(np.zeros(2, "uint16"), "batch['t']")
    with pytest.raises(TypeError, match="array of object"):
        as_tensor(np.array([None]), "batch")


def test_objects_that_hide_tensors_are_refused():
    class Graph:
        def __init__(self):
            self.nodes = torch.ones(2)

    with pytest.raises(TypeError, match=r"is a Graph that holds a tensor \('nodes'\)"):
        as_tensor(Graph(), "batch[0]")


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.eye(2).to_sparse(), r"batch \[2, 2\] is sparse, nested or quantized"),
        (torch.ones(2, dtype=torch.uint16), "is uint16, which torch_xla turns into"),
        (torch.ones(2, requires_grad=True) * 2, r"use tensor\.detach\(\)"),
    ],
)
def test_tensors_that_cannot_be_split_are_refused(tensor, text):
    with pytest.raises(ValueError, match=text):
        as_tensor(tensor, "batch")


def test_tensors_elsewhere_are_refused(monkeypatch):
    class Elsewhere:
        type = "cuda"

        def __str__(self):
            return "cuda:0"

    class Fake(torch.Tensor):
        device = Elsewhere()

    with pytest.raises(ValueError, match="is on cuda:0; a batch is on the CPU"):
        as_tensor(torch.ones(2).as_subclass(Fake), "batch")


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_padding_repeats_the_last_row(rank):
    tensor = torch.arange(3 * 2 ** (rank - 1)).reshape(3, *[2] * (rank - 1))
    padded = pad_rows(tensor, 5)
    assert torch.equal(padded[:3], tensor)
    assert torch.equal(padded[3], tensor[2])
    assert torch.equal(padded[4], tensor[2])
    assert pad_rows(tensor, 3) is tensor
    assert pad_rows(tensor, 4, value=-100)[3].unique().tolist() == [-100]


def test_pieces_are_filled_with_zeros():
    mesh = Mesh({"fsdp": 2, "seq": 4})
    placement = place((2, 5), mesh, ("fsdp", "seq"), hosts=(tuple(range(8)),))
    pieces = cut(torch.arange(1, 11).reshape(2, 5), placement)
    assert [p.tolist() for p in pieces[4:]] == [[[6, 7]], [[8, 9]], [[10, 0]], [[0, 0]]]
