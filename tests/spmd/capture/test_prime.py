from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd._capture.host_reads import refuse_host_reads
from spmd._capture.prime import tensor_factors
from tests.on_device import on_device, split_by, sync
from tests.spmd.training import MESH, adamw, mlp, simple, wrapped

OPTIM: Any = torch.optim
STATE = {
    "Adam": {"step", "exp_avg", "exp_avg_sq"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq"},
    "NAdam": {"step", "exp_avg", "exp_avg_sq", "mu_product"},
    "RAdam": {"step", "exp_avg", "exp_avg_sq"},
    "Adamax": {"step", "exp_avg", "exp_inf"},
    "RMSprop": {"step", "square_avg"},
    "Rprop": {"step", "prev", "step_size"},
    "ASGD": {"step", "ax", "eta", "mu"},
    "Adadelta": {"step", "square_avg", "acc_delta"},
    "Muon": {"momentum_buffer"},
}


@pytest.mark.parametrize("name", STATE)
def test_state_is_there_before_the_first_step_and_on_the_device(name):
    model = wrapped(nn.Linear(16, 16, bias=False))
    optimizer = getattr(OPTIM, name)(model.parameters())
    before = model.weight.detach().cpu()
    assert spmd.prime_optimizer(optimizer) is optimizer
    state = optimizer.state[model.weight]
    assert set(state) == STATE[name]
    known = spmd.get_sharding(model.weight)
    for value in state.values():
        assert value.device.type == "xla"
        if value.shape == model.weight.shape:
            assert spmd.get_sharding(value) == known
    assert model.weight.grad is None
    assert torch.equal(model.weight.detach().cpu(), before)


@pytest.mark.parametrize("name", STATE)
def test_the_first_steps_are_those_of_an_optimizer_left_alone(name):
    weights = []
    for primed in (False, True):
        torch.manual_seed(0)
        model = wrapped(nn.Linear(16, 16, bias=False))
        optimizer = getattr(OPTIM, name)(model.parameters())
        if primed:
            spmd.prime_optimizer(optimizer)
        made = simple(model, optimizer)
        for batch in made.batches[:2]:
            made.step(batch)
            sync()
        weights.append(model.weight.detach().cpu())
    torch.testing.assert_close(*weights)


def test_priming_twice_changes_nothing():
    model = wrapped(mlp())
    made = simple(model, adamw(model))
    spmd.prime_optimizer(made.optimizer)
    made.step(made.batches[0])
    sync()
    before = [dict(s) for s in made.optimizer.state.values()]
    spmd.prime_optimizer(made.optimizer)
    after = list(made.optimizer.state.values())
    assert all(
        a[k] is b[k] for a, b in zip(after, before, strict=True) for k in (*a, *b)
    )


def test_counts_that_were_loaded_on_the_host_keep_their_value():
    model = wrapped(mlp())
    optimizer = adamw(model)
    made = simple(model, optimizer)
    made.step(made.batches[0])
    assert {s["step"].device.type for s in optimizer.state.values()} == {"cpu"}
    spmd.prime_optimizer(optimizer)
    steps = [s["step"] for s in optimizer.state.values()]
    assert {s.device.type for s in steps} == {"xla"}
    assert {s.item() for s in steps} == {1.0}


def test_gradients_are_left_as_they_were():
    model = wrapped(mlp())
    first, second, *_ = model.parameters()
    first.grad = torch.ones_like(first)
    given = first.grad
    second.requires_grad_(False)
    optimizer = adamw(model)
    spmd.prime_optimizer(optimizer)
    assert first.grad is given and second.grad is None
    assert first in optimizer.state and second not in optimizer.state


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({}, False),
        ({"momentum": 0.9}, True),
        ({"momentum": 0.9, "nesterov": True}, True),
        ({"momentum": 0.9, "dampening": 0.1}, False),
    ],
)
def test_sgd_starts_from_zero_where_that_is_the_same(options, starts):
    model = wrapped(nn.Linear(16, 16, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    spmd.prime_optimizer(optimizer)
    buffer = optimizer.state[model.weight].get("momentum_buffer")
    assert (buffer is not None) == starts
    if buffer is not None:
        known = spmd.get_sharding(model.weight)
        assert known is not None and split_by(buffer, MESH, known.spec)


def test_counts_of_an_optimizer_that_needs_them_on_the_host_stay_there():
    model = wrapped(mlp())
    optimizer = torch.optim.Adagrad(model.parameters())
    spmd.prime_optimizer(optimizer)
    assert {s["step"].device.type for s in optimizer.state.values()} == {"cpu"}


def test_options_that_do_not_run_here_are_switched_off():
    model = wrapped(mlp())
    optimizer = adamw(model, foreach=True)
    spmd.prime_optimizer(optimizer)
    assert optimizer.param_groups[0]["foreach"] is False
    assert optimizer.param_groups[0]["capturable"] is True
    other = torch.optim.Adadelta(model.parameters())
    spmd.prime_optimizer(other)
    assert other.param_groups[0]["capturable"] is False


class Own(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self) -> None:
        pass


def test_another_kind_of_optimizer_is_left_alone():
    model = wrapped(mlp())
    optimizer = Own(model.parameters())
    assert spmd.prime_optimizer(optimizer) is optimizer
    assert not optimizer.state


def test_an_optimizer_on_the_cpu():
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    spmd.prime_optimizer(optimizer)
    assert {s["step"].device.type for s in optimizer.state.values()} == {"cpu"}


FACTORS = {
    "add_": lambda x, y, f: x.add_(y, alpha=f),
    "add": lambda x, y, f: torch.add(x, y, alpha=f),
    "sub": lambda x, y, f: x.sub(y, alpha=f),
    "sub_": lambda x, y, f: x.sub_(y, alpha=f),
    "addcdiv_": lambda x, y, f: x.addcdiv_(y, y + 1, value=f),
    "addcdiv": lambda x, y, f: torch.addcdiv(x, y, y + 1, value=f),
    "addcmul_": lambda x, y, f: x.addcmul_(y, y, value=f),
    "addcmul": lambda x, y, f: torch.addcmul(x, y, y, value=f),
}


@pytest.mark.parametrize("name", FACTORS)
def test_factors_stay_on_the_device(name):
    def data() -> tuple[torch.Tensor, torch.Tensor]:
        return on_device(8, 4) * 1.0, on_device(8, 4) / 7

    wanted = FACTORS[name](*data(), 0.3).cpu()
    factor = torch.tensor(0.3).to("xla")
    with refuse_host_reads(), tensor_factors():
        x, y = data()
        found = FACTORS[name](x, y, factor)
        assert (found is x) == name.endswith("_")
        numbers = FACTORS[name](*data(), 0.3)
    torch.testing.assert_close(found.cpu(), wanted)
    assert torch.equal(numbers.cpu(), wanted)


def test_products_with_factors_stay_on_the_device():
    x, y = on_device(4, 4) / 7, on_device(4, 4) / 5
    wanted = torch.addmm(x.cpu(), x.cpu(), y.cpu(), beta=0.5, alpha=2.0)
    with refuse_host_reads(), tensor_factors():
        found = torch.addmm(x, x, y, beta=0.5, alpha=2.0)
        plain = torch.addmm(x, x, y)
    torch.testing.assert_close(found.cpu(), wanted)
    assert torch.equal(plain.cpu(), torch.addmm(x, x, y).cpu())


def test_functions_are_as_before_afterwards():
    names = ("add", "sub", "addcmul", "addcdiv", "addmm")
    before = [getattr(torch, n) for n in names], dict(vars(torch.Tensor))
    with pytest.raises(ZeroDivisionError), tensor_factors():
        raise ZeroDivisionError
    assert ([getattr(torch, n) for n in names], dict(vars(torch.Tensor))) == before
    out = torch.zeros(2)
    with tensor_factors():
        assert torch.add(torch.ones(2), torch.ones(2), alpha=2, out=out) is out
    assert out.tolist() == [3, 3]
