"""Steps that are not traced, and why."""

import numpy as np
import pytest
import torch

import spmd
from spmd import CaptureError, HostReadError, Mesh
from tests.on_device import on_device
from tests.spmd.tracing import (
    DIM,
    MESH,
    described,
    loss_of,
    net,
    step_of,
    traced,
    wrapped,
)


def names(program, role):
    return [v.name for v in program.inputs if v.role == role]


def test_not_callable():
    with pytest.raises(TypeError, match="trace: 3 is not callable"):
        spmd.trace(3)


def test_no_mesh():
    with pytest.raises(ValueError, match=r"no mesh: .* Give mesh=.*FSDPv2"):
        spmd.trace(lambda x: x * 2, torch.ones(8))
    with pytest.raises(ValueError, match="no mesh"):
        spmd.trace(lambda x: x * 2, torch.ones(8), model=net())


def test_batches_that_do_not_divide():
    with pytest.raises(ValueError, match=r"7"):
        traced(wrapped(), described(7))


def test_dtypes_torch_lacks():
    class Described:
        shape, dtype = (8,), np.dtype("datetime64[s]")

    with pytest.raises(TypeError, match=r"trace: .*torch has no dtype datetime64"):
        spmd.trace(lambda x: x, Described(), mesh=MESH)


def test_batches_that_nobody_splits_are_named():
    mesh = Mesh({"fsdp": 8})
    batch = {**described(), "table": np.zeros((3, DIM), np.float32)}
    with pytest.warns(UserWarning, match=r"table.* \[3, 16\]"):
        spmd.trace(
            lambda batch: batch["ids"].sum() + batch["table"].sum(), batch, mesh=mesh
        )


def test_tensors_from_elsewhere():
    table = on_device(8, 8)
    with pytest.raises(CaptureError, match=r"none of its inputs: table.*\[8, 8\]"):
        spmd.trace(lambda x: x + table, torch.ones(8, 8), mesh=MESH)


def test_large_constants_made_inside():
    def step(x):
        return x + torch.tensor([1.0] * 8, device=x.device)

    with pytest.raises(CaptureError, match=r"none of its inputs"):
        spmd.trace(step, torch.ones(8, 8), mesh=MESH)


def test_tensors_on_the_host():
    table = torch.ones(8, 8)
    with pytest.raises(CaptureError, match=r"none of its inputs.*\[8, 8\]"):
        spmd.trace(lambda x: x + table, torch.ones(8, 8), mesh=MESH)


def test_host_reads():
    model = wrapped()

    def step(batch):
        loss = loss_of(model, batch)
        if loss.item() > 3:
            loss = loss * 2
        return loss

    with pytest.raises(HostReadError, match=r"test_trace_refused.py:\d+ in step"):
        spmd.trace(step, described(), model=model)


class Custom(torch.optim.Optimizer):
    """Makes its state inside the step, as most optimizers outside torch do."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                state["average"].lerp_(parameter.grad, 0.1)
                parameter.sub_(state["average"] * group["lr"])


def test_optimizers_that_make_their_state_in_the_step():
    model = wrapped()
    optimizer = Custom(model.parameters())
    program = spmd.trace(
        step_of(model, optimizer), described(), model=model, optimizer=optimizer
    )
    assert set(names(program, "optimizer")) == {
        f"optimizer.average[{n}]" for n, _ in net().named_parameters()
    }
    assert not optimizer.state
