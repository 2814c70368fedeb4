import torch

import spmd
from fsdpv2._weights import cast, gathered
from spmd import Mesh
from tests.on_device import as_tiles, constraints, on_device, sync

MESH = Mesh({"fsdp": 4, "tensor": 2})


def parameter(spec, mesh=MESH):
    value = torch.nn.Parameter(on_device(8, 8))
    return spmd.mark_sharding(value, mesh, spec, grad=spec)


def test_a_gathered_weight_keeps_its_other_axes_and_its_gradient():
    weight = parameter(("tensor", "fsdp"))
    whole = gathered(weight, axis="fsdp")
    assert constraints(whole) == [as_tiles(MESH, ("tensor", None))]
    assert spmd.get_sharding(whole).spec == ("tensor", None)
    (whole * 2).sum().backward()
    sync()
    torch.testing.assert_close(weight.grad.cpu(), torch.full((8, 8), 2.0))


def test_an_axis_is_taken_out_of_several():
    whole = gathered(parameter((("tensor", "fsdp"), None)), axis="fsdp")
    assert constraints(whole) == [as_tiles(MESH, ("tensor", None))]


def test_what_the_axis_does_not_split_stays():
    for tensor in (parameter(("tensor", None)), torch.ones(2), on_device(2, 2)):
        assert gathered(tensor, axis="fsdp") is tensor


def test_a_cast_weight_is_split_as_before():
    weight = parameter(("fsdp", None))
    value = cast(weight, torch.bfloat16)
    assert value.dtype == torch.bfloat16
    assert spmd.get_sharding(value).spec == ("fsdp", None)
    assert constraints(value) == [as_tiles(MESH, ("fsdp", None))]
    value.float().sum().backward()
    assert weight.grad.dtype == torch.float32


def test_what_is_that_dtype_or_no_float_stays():
    for tensor in (torch.ones(2), torch.ones(2, dtype=torch.int64)):
        assert cast(tensor, torch.float32) is tensor
