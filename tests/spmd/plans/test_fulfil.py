import pytest
import torch
from torch import nn

from spmd._marking.planning import planning
from spmd._marking.promise import promise, promised
from spmd._plans.fulfil import fulfil, watch


@pytest.fixture
def training():
    """A model on meta that is promised sevens, and a moment that is promised threes."""
    model = nn.Linear(2, 2, bias=False, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    moment = torch.empty(2, 2, device="meta")
    optimizer.state[model.weight]["momentum_buffer"] = moment
    promise(model.weight, lambda index: torch.full((2, 2), 7.0)[index])
    promise(moment, lambda index: torch.full((2, 2), 3.0)[index])
    watch(model, optimizer)
    watch(model, optimizer)  # has no effect
    assert len(model._forward_pre_hooks) == 1
    return model, optimizer


def test_the_object_stays_and_so_does_its_gradient_flag(training):
    model, optimizer = training
    weight = model.weight
    fulfil(model)
    assert model.weight is weight and weight.requires_grad and weight.is_leaf
    assert promised(weight) is None
    assert weight.eq(7).all()
    assert optimizer.state[weight]["momentum_buffer"].device.type == "meta"


def test_every_way_to_ask(training):
    model, optimizer = training
    state = optimizer.state_dict()["state"]
    assert state[0]["momentum_buffer"].eq(3).all()
    assert model.weight.device.type == "meta"
    assert model.state_dict()["weight"].eq(7).all()


def test_a_forward_and_a_step(training):
    model, optimizer = training
    assert model(torch.ones(1, 2)).sum() == 28
    model.weight.grad = torch.zeros(2, 2)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), torch.full((2, 2), 7 - 0.27))


def test_loading_a_state_dict(training):
    model, optimizer = training
    model.load_state_dict({"weight": torch.ones(2, 2)})
    assert model.weight.eq(1).all()
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state[model.weight]["momentum_buffer"].eq(3).all()


def test_a_trace_for_another_mesh_asks_for_nothing(training):
    model, _ = training
    with planning(lambda *_: None):
        assert model(torch.ones(1, 2, device="meta")).device.type == "meta"
    assert promised(model.weight)
