import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import spmd
from profiling._metrics.values import are_recorded, is_jax, is_xla, keep, read
from spmd._jax.device_array import DeviceArray


def device_array(number: float) -> DeviceArray:
    return DeviceArray(jnp.asarray(number, jnp.float32), (), "float32")


@pytest.mark.parametrize(
    "value",
    [
        3,
        3.0,
        np.float32(3),
        np.array([3.0]),
        torch.tensor(3.0),
        torch.tensor([[3]]),
        torch.tensor(3.0, requires_grad=True),
        torch.tensor(3.0, dtype=torch.bfloat16),
    ],
    ids=["int", "float", "np", "array", "cpu", "ints", "grad", "bf16"],
)
def test_what_is_on_the_host_is_read_at_once(value):
    kept = keep("loss", value)
    assert type(kept) is float and kept == 3.0


def test_what_is_on_devices_stays_there():
    spmd.init()
    on_xla = torch.tensor(2.0, requires_grad=True).to("xla")
    given = [on_xla, device_array(3.0), jnp.ones((1,)) * 4, 5.0]
    kept = [keep("loss", value) for value in given]
    assert [is_xla(v) for v in kept] == [True, False, False, False]
    assert [is_jax(v) for v in kept] == [False, True, True, False]
    assert not kept[0].requires_grad
    assert read(kept) == [2.0, 3.0, 4.0, 5.0]


def test_recorded_values_are_known_from_executed_ones():
    spmd.init()
    data = torch.tensor(2.0).to("xla")
    spmd._torch_xla.seam.wait()
    assert are_recorded([1.0, data * 2, data]) == [False, True, False]
    assert are_recorded([1.0]) == [False]


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        ("much", TypeError, "loss is a str; a number, or a tensor or array of one"),
        ([1.0], TypeError, "loss is a list"),
        (1j, TypeError, "loss is a complex"),
        (torch.tensor(1j), TypeError, r"loss is complex; give its abs\(\)"),
        (torch.ones(3), ValueError, r"loss has shape \[3\]; one number is needed"),
        (np.ones((2, 2)), ValueError, r"loss has shape \[2, 2\]"),
        (torch.ones((), device="meta"), ValueError, "loss is on meta, where it has no"),
    ],
    ids=["str", "list", "complex", "complex tensor", "three", "four", "meta"],
)
def test_what_is_no_number(value, error, match):
    with pytest.raises(error, match=match):
        keep("loss", value)


def test_inside_of_a_traced_function():
    def loss(x):
        keep("loss", x.sum())
        return x.sum()

    match = "loss is a value of a step that is being traced; return it from the step"
    with pytest.raises(RuntimeError, match=match):
        jax.jit(loss)(jnp.ones(3))
    step = spmd.compile_step(loss)
    mesh = spmd.Mesh({"fsdp": -1})
    with pytest.raises(RuntimeError, match=match):
        step(spmd.shard_batch(torch.ones(8), mesh))


def test_memory_that_a_later_step_has_taken():
    array = device_array(3.0)
    array.array.delete()
    with pytest.raises(RuntimeError, match=r"whose memory a later step has taken"):
        read([array])


def test_another_failure_comes_out_as_it_is():
    class Broken:
        def item(self):
            raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match=r"^out of order$"):
        read([Broken()])
