from collections import namedtuple
from dataclasses import dataclass

import jax
import numpy as np
import pytest
import torch

import spmd
from spmd import Mesh
from spmd._marking.planning import planning
from spmd._trace.batch import batch_stand_ins
from tests.on_device import on_device

MESH = Mesh({"fsdp": 4, "tensor": 2})
ROWS = ("fsdp", None)
Pair = namedtuple("Pair", "x y")


@dataclass
class Both:
    x: object
    y: object


def step(batch, scale=1.0, *rest, **more):
    return batch


def stand_ins(*args, spec=None, fn=step, mesh=MESH, **kwargs):
    with planning(lambda *_: None):
        return batch_stand_ins(fn, args, kwargs, mesh=mesh, spec=spec)


def spec_of(tensor):
    annotation = spmd.get_sharding(tensor)
    return None if annotation is None else annotation.spec


class Described:
    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype


@pytest.mark.parametrize(
    "leaf",
    [
        torch.ones(8, 3),
        torch.ones(8, 3, device="meta"),
        np.ones((8, 3), np.float32),
        jax.ShapeDtypeStruct((8, 3), "float32"),
        Described([8, 3], torch.float32),
        Described((8, 3), np.dtype("float32")),
    ],
    ids=["cpu", "meta", "numpy", "jax", "torch dtype", "numpy dtype"],
)
def test_anything_with_a_shape(leaf):
    (twin,), _ = stand_ins(leaf)
    assert (twin.shape, twin.dtype) == ((8, 3), torch.float32)
    assert twin.device.type == "xla"
    assert spec_of(twin) == ROWS


def test_on_the_device():
    (twin,), _ = stand_ins(tensor := on_device(8, 3))
    assert spec_of(twin) == ROWS
    assert spec_of(tensor) is None


@pytest.mark.parametrize(
    "dtype", ["bool", "int32", "int64", "uint8", "float16", "bfloat16", "float64"]
)
def test_dtypes(dtype):
    with jax.enable_x64(True):
        described = jax.ShapeDtypeStruct((8,), dtype)
    (twin,), _ = stand_ins(described)
    assert twin.dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    "dtype", [np.dtype("datetime64[s]"), np.dtype("U3"), np.dtype(object)]
)
def test_dtypes_that_torch_lacks(dtype):
    with pytest.raises(TypeError, match=r"trace: .*torch has no dtype"):
        stand_ins(Described((8,), dtype))


def test_dtypes_that_the_device_changes():
    with pytest.raises(TypeError, match=r"uint16.*cast it to int32"):
        stand_ins(np.ones(8, np.uint16))


@pytest.mark.parametrize("make", [Pair, Both, lambda x, y: [x, (y,)]])
def test_containers_keep_their_type(make):
    (batch,), kwargs = stand_ins(make(torch.ones(8, 3), "text"), more={"n": 3})
    assert type(batch) is type(make(1, 2))
    assert kwargs == {"more": {"n": 3}}


def test_numbers_stay():
    leaf = np.float32(3)
    args, kwargs = stand_ins({"x": torch.ones(8), "n": leaf}, 2, flag=True, none=None)
    assert args[0]["n"] is leaf
    assert args[1] == 2
    assert kwargs == {"flag": True, "none": None}


def test_one_tensor_twice_is_two_inputs():
    x = torch.ones(8, 3)
    (batch,), _ = stand_ins({"x": x, "y": x})
    assert batch["x"] is not batch["y"]


def test_attributes_and_gradients_are_kept():
    x = torch.ones(8, 3).requires_grad_()
    x.mine = 1
    (twin,), _ = stand_ins(x)
    assert twin.requires_grad
    assert twin.mine == 1


def test_specs_of_the_only_argument():
    batch = {"x": torch.ones(8, 4), "y": torch.ones(8, 4)}
    (twin,), _ = stand_ins(batch, spec={"y": (None, "tensor")})
    assert (spec_of(twin["x"]), spec_of(twin["y"])) == (ROWS, (None, "tensor"))
    _, kwargs = stand_ins(batch=batch, spec={"y": None})
    assert spec_of(kwargs["batch"]["y"]) == (None, None)


def test_specs_by_parameter():
    def two(x, *, y):
        return x + y

    args, kwargs = stand_ins(
        torch.ones(8, 4), y=torch.ones(8, 4), spec={"y": (None, "tensor")}, fn=two
    )
    assert spec_of(args[0]) == ROWS
    assert spec_of(kwargs["y"]) == (None, "tensor")
    with pytest.raises(ValueError, match=r"has no 'z', only \['x', 'y'\]"):
        stand_ins(torch.ones(8), y=torch.ones(8), spec={"z": None}, fn=two)


def test_annotated_tensors_keep_their_spec():
    x = torch.ones(8, 4, device="meta")
    spmd.mark_sharding(x, MESH, (None, "tensor"))
    (twin,), _ = stand_ins({"x": x, "y": torch.ones(8, 3)}, spec={"y": None})
    assert spec_of(twin["x"]) == (None, "tensor")
    assert spec_of(twin["y"]) == (None, None)


def test_scalars_are_whole():
    (twin,), _ = stand_ins({"x": torch.ones(8, 3), "scale": torch.tensor(2.0)})
    assert twin["scale"].shape == ()
    assert spec_of(twin["scale"]) is None


def test_rows_that_do_not_divide():
    with pytest.raises(ValueError, match="6"):
        stand_ins({"x": torch.ones(6, 3)})


def test_no_data_axis():
    with pytest.raises(ValueError, match="none of the axes"):
        stand_ins(torch.ones(8, 3), mesh=Mesh({"tensor": 2}))


def test_no_arguments():
    assert stand_ins(fn=lambda: None) == ((), {})


def test_left_tensors_are_named_at_the_users_line():
    batch = {"x": torch.ones(8, 3), "y": torch.ones(8, 3), "table": torch.ones(5, 3)}
    with pytest.warns(UserWarning, match=r"'table'\] \[5, 3\]") as caught:
        stand_ins(batch)
    assert caught[0].filename == __file__
