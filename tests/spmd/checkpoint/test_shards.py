"""The parts that a process writes."""

import pytest
import torch

import spmd
from spmd import Mesh
from spmd.checkpoint._shards import boxes
from spmd.checkpoint._team import Team
from tests.on_device import on_device

MESH = Mesh({"a": 4, "b": 2})


def parts(tensor, **options):
    return list(boxes("x", tensor, Team(), **options))


@pytest.mark.filterwarnings("ignore:.*does not divide over")
@pytest.mark.parametrize(
    "spec", [("a", "b"), ("b", None), (None, "a"), (("b", "a"), None)]
)
def test_they_cover_a_tensor_once(spec):
    tensor = spmd.mark_sharding(on_device(9, 5), MESH, spec)
    whole, times = torch.full((9, 5), -1.0), torch.zeros(9, 5)
    for box in parts(tensor):
        assert box.shape == (9, 5)
        where = tuple(
            slice(o, o + n) for o, n in zip(box.offset, box.data.shape, strict=True)
        )
        whole[where] = box.data
        times[where] += 1
    assert torch.equal(whole, torch.arange(45.0).reshape(9, 5))
    assert times.eq(1).all()


def test_whole_ones_come_from_one_device():
    for tensor in (on_device(4, 2), spmd.replicate(on_device(4, 2), MESH)):
        (box,) = parts(tensor)
        assert torch.equal(box.data, torch.arange(8.0).reshape(4, 2))
        assert list(boxes("x", tensor, Team(1, 2))) == []  # process 0 writes it


def test_tensors_of_the_host_are_copied_if_wanted():
    tensor = torch.ones(2)
    assert parts(tensor)[0].data.data_ptr() == tensor.data_ptr()
    assert parts(tensor, copy=True)[0].data.data_ptr() != tensor.data_ptr()


def test_values_that_are_elsewhere():
    read = lambda row: iter([((1,), torch.ones(1))])  # noqa: E731
    (box,) = parts(torch.empty(2, device="meta"), read=read)
    assert (box.offset, box.data.item()) == ((1,), 1.0)


@pytest.mark.filterwarnings("ignore:.*does not divide over")
@pytest.mark.parametrize("spec", [(None, "a"), ("b", None), None])
def test_one_row(spec):
    whole = torch.arange(45.0).reshape(9, 5)
    tensors = [whole, on_device(9, 5)]
    if spec is not None:
        spmd.mark_sharding(tensors[1], MESH, spec)
    for tensor in tensors:
        for row in (0, 7):
            (box,) = parts(tensor, row=row)
            assert (box.shape, box.offset) == ((5,), (0,))
            assert torch.equal(box.data, whole[row])
