import pytest
import torch
import torch_xla.debug.metrics as met

import spmd
from spmd import Mesh
from spmd._torch_xla import seam
from tests.on_device import on_device, sync

FLAT = Mesh({"fsdp": 8})
WHOLE = torch.arange(64.0).reshape(8, 8)


def spec_of(tensor: torch.Tensor) -> tuple:
    seam.wait()
    return spmd.get_sharding(tensor, FLAT).spec


@pytest.mark.parametrize("split", [("fsdp", None), (None, "fsdp")], ids=str)
def test_one_tensor_gets_the_others_sharding(split):
    a = spmd.mark_sharding(on_device(8, 8) * 1, FLAT, split)
    a, b = spmd.shard_as(a, on_device(8, 8) * 3)
    a, b = a * 1, b * 1
    sync()
    assert spec_of(a) == spec_of(b) == split
    assert torch.equal(a.cpu(), WHOLE) and torch.equal(b.cpu(), WHOLE * 3)


def test_two_ties_in_one_program_stay_apart():
    results = []
    for split in (("fsdp", None), (None, "fsdp")):
        a = spmd.mark_sharding(on_device(8, 8) * 1, FLAT, split)
        _, b = spmd.shard_as(a, on_device(8, 8) * 3)
        results.append(b * 1)
    sync()
    assert [spec_of(b) for b in results] == [("fsdp", None), (None, "fsdp")]


def test_every_step_is_the_same_program():
    compiled = []
    for _ in range(3):
        a = spmd.mark_sharding(on_device(8, 8) * 5, FLAT, ("fsdp", None))
        tied = [spmd.shard_as(a + i, on_device(8, 8) + i)[1] * 7 for i in range(2)]
        sync()
        compiled.append(met.counter_value("UncachedCompile"))
        assert torch.equal(tied[1].cpu(), (WHOLE + 1) * 7)
    assert compiled[2] == compiled[0]


def test_gradients_flow_and_are_tied():
    a = on_device(8, 8).requires_grad_()
    b = on_device(8, 8).requires_grad_()
    x, y = spmd.shard_as(a * 2, b * 3)
    x = spmd.mark_sharding(x * 1, FLAT, ("fsdp", None))
    (x * y).sum().backward()
    sync()
    assert torch.equal(a.grad.cpu(), WHOLE * 6) and torch.equal(b.grad.cpu(), WHOLE * 6)
    assert spec_of(a.grad) == spec_of(b.grad) == ("fsdp", None)


def test_the_gradient_of_one_that_is_not_used():
    a = on_device(8, 8).requires_grad_()
    b = on_device(8, 8).requires_grad_()
    spmd.shard_as(a * 2, b * 3)[0].sum().backward()
    assert torch.equal(a.grad.cpu(), torch.full((8, 8), 2.0))
    assert b.grad is None or not b.grad.cpu().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_other_dtypes(dtype):
    a, b = spmd.shard_as(on_device(4, dtype=dtype), on_device(4, dtype=dtype))
    assert torch.equal(a.cpu(), torch.arange(4).to(dtype))
    assert torch.equal(b.cpu(), torch.arange(4).to(dtype))


def test_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"shapes \[8, 4\] and \[8, 8\] differ"):
        spmd.shard_as(on_device(8, 4), on_device(8, 8))


def test_the_cpu_is_refused():
    with pytest.raises(ValueError, match=r"b \[8, 8\] is on cpu; move it"):
        spmd.shard_as(on_device(8, 8), torch.ones(8, 8))


def test_a_complex_tensor_is_refused():
    x = torch.ones(2, dtype=torch.complex64).to("xla")
    with pytest.raises(TypeError, match=r"a \[2\] is torch\.complex64; one of"):
        spmd.shard_as(x, x)
