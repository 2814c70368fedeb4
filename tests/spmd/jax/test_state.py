import pytest
import torch
from torch import nn

from spmd._capture.state import StepState
from spmd._jax.device_array import DeviceArray
from spmd._jax.state import HollowState


def make(momentum: float = 0.9) -> tuple[nn.Module, torch.optim.Optimizer, StepState]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    return model, optimizer, StepState(model, optimizer, {})


WHOLE = (slice(0, 4), slice(0, 3))


def as_device_array(tensor: torch.Tensor) -> DeviceArray:
    """Enough of one: `fill` only reads it."""

    class Read:
        def torch(self) -> torch.Tensor:
            return tensor.clone()

    return Read()  # pyright: ignore[reportReturnType] - a stand-in


def test_hollow_tensors_keep_their_object_and_refuse_to_be_read():
    model, optimizer, state = make()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    objects = {n: p for n, p in model.named_parameters()}
    hollow = HollowState(state)
    sources = hollow.take()
    assert sources is not None and hollow.is_hollow
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert all(objects[n] is p for n, p in model.named_parameters())
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        model[0].weight.cpu()
    torch.testing.assert_close(sources["0.weight"](WHOLE), before["0.weight"])
    part = sources["0.weight"]((slice(2, 4), slice(0, 3)))
    torch.testing.assert_close(part, before["0.weight"][2:4])
    # State that the first step would make is there, and made piece by piece.
    moment = sources["optimizer.momentum_buffer[0.weight]"](WHOLE)
    assert moment.shape == (4, 3) and not moment.any()
    held = optimizer.state[model[0].weight]["momentum_buffer"]
    assert held.device.type == "meta"


def test_filling_gives_the_values_back():
    model, optimizer, state = make()
    model[0].weight.grad = torch.ones(4, 3)
    hollow = HollowState(state)
    hollow.take()
    hollow.let_go()
    new = {n: as_device_array(torch.full(p.shape, 7.0)) for n, p in state.parameters}
    new["1.num_batches_tracked"] = as_device_array(torch.tensor(5))
    new["optimizer.momentum_buffer[0.weight]"] = as_device_array(torch.ones(4, 3))
    new["grad[0.weight]"] = as_device_array(torch.full((4, 3), 3.0))
    assert model[0].weight.grad.device.type == "meta"
    hollow.fill(new)
    assert (model[0].weight.grad == 3).all()
    assert not hollow.is_hollow
    assert (model[0].weight == 7).all() and model[0].weight.requires_grad
    assert model[1].num_batches_tracked == 5
    assert (optimizer.state[model[0].weight]["momentum_buffer"] == 1).all()


def test_nothing_is_sent_again_that_did_not_change():
    model, _, state = make()
    hollow = HollowState(state)
    hollow.take()
    hollow.let_go()
    everything = {
        s.name: as_device_array(torch.zeros(s.read().shape)) for s in state.places()
    }
    hollow.fill(everything)
    assert hollow.take() is None
    hollow.let_go()
    hollow.fill(everything)
    with torch.no_grad():
        model[0].weight.add_(1)
    sources = hollow.take()
    assert sources is not None
    assert (sources["0.weight"](WHOLE) == 1).all()


def test_first_values_that_differ_are_refused():
    class Odd(torch.optim.SGD):
        def _init_group(self, group, *lists):
            for p in group["params"]:
                self.state[p]["odd"] = torch.arange(p.numel()).reshape(p.shape).float()

    model = nn.Linear(2, 2)
    state = StepState(model, Odd(model.parameters(), lr=0.1), {})
    with pytest.raises(ValueError, match=r"Odd: its state 'odd' does not start from"):
        HollowState(state).take()
