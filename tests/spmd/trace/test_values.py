import numpy as np
import pytest
import torch

import spmd
from spmd._capture.state import StepState
from spmd._trace.values import as_numpy, dtype_name, spec_by_name
from tests.on_device import on_device
from tests.spmd.tracing import MESH, described, loss_of, traced, wrapped


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.float32, "float32"),
        (torch.int64, "int64"),
        (torch.bool, "bool"),
        (torch.bfloat16, "uint16"),
        (torch.float8_e4m3fn, "uint8"),
        (torch.float8_e5m2, "uint8"),
    ],
)
def test_values_as_their_bits(dtype, stored):
    values = torch.tensor([[0.0, 1.0], [2.0, 0.5]]).t()
    array = as_numpy(values.to(dtype))
    assert array.dtype.name == stored
    assert array.shape == (2, 2)
    again = torch.from_numpy(array.copy())
    again = again if stored == dtype_name(values.to(dtype)) else again.view(dtype)
    assert torch.equal(again.float(), values.to(dtype).float())


def test_values_on_the_device():
    assert (as_numpy(on_device(2, 3)) == np.arange(6).reshape(2, 3)).all()
    assert as_numpy(torch.tensor(3.0).requires_grad_()).shape == ()


def test_names_of_dtypes():
    assert dtype_name(torch.ones(1, dtype=torch.bfloat16)) == "bfloat16"


def test_specs_of_the_state():
    model = wrapped("xla")
    found = spec_by_name(StepState(model, None, {}), MESH)
    assert found["layers.0.up.weight"] == ("fsdp", None)
    assert found["scale"] is None


def test_a_gradient_that_the_step_clears_is_an_input_with_a_spec():
    model = wrapped()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step(batch):
        loss_of(model, batch).backward()
        total = sum(p.grad.square().sum() for p in model.parameters())
        model.zero_grad()
        return total

    program = spmd.trace(step, described(), model=model)
    taken = [v for v in program.inputs if v.role == "gradient"]
    assert len(taken) == 7
    assert all("fsdp" in v.spec and v.donated_to is None for v in taken)
    assert [v.name for v in program.outputs] == ["output"]


def test_only_what_changes_is_donated():
    model = wrapped()
    model.embed.weight.requires_grad_(False)
    program = traced(model)
    frozen = next(v for v in program.inputs if v.name == "embed.weight")
    assert frozen.donated_to is None
    given = [v for v in program.inputs if v.donated_to is not None]
    assert {v.role for v in given} == {"parameter", "optimizer"}
    assert len(given) == 4 * 6
