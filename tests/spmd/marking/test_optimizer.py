import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh
from tests.on_device import on_device, piece_shapes, split_by, sync

MESH = Mesh({"replica": 2, "fsdp": 4})
SPEC = ("fsdp", ("replica",))
MAKE: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "AdamW-amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
}
SAME_SHAPE = {
    "AdamW": {"exp_avg", "exp_avg_sq"},
    "AdamW-amsgrad": {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    "SGD": {"momentum_buffer"},
    "Adafactor": set(),
}


def parameter(mark: bool = True) -> nn.Parameter:
    weight = nn.Parameter(on_device(8, 4))
    if mark:
        spmd.mark_sharding(weight, MESH, SPEC, grad=SPEC)
    return weight


def step(weight: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    (weight * weight).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", MAKE)
def test_state_takes_the_parameters_spec_right_after_the_first_step(name):
    weight = parameter()
    optimizer = MAKE[name]([weight])
    step(weight, optimizer)
    state = optimizer.state[weight]
    marked = {
        k for k, v in state.items() if torch.is_tensor(v) and spmd.get_sharding(v)
    }
    assert marked == SAME_SHAPE[name]
    for key in marked:
        assert spmd.get_sharding(state[key]) == spmd.get_sharding(weight)
    sync()
    for key in marked:
        assert piece_shapes(state[key]) == [(2, 2)] * 8


@pytest.mark.parametrize("name", MAKE)
def test_nothing_drifts_over_four_steps(name):
    weight = parameter()
    optimizer = MAKE[name]([weight])
    reference = nn.Parameter(torch.arange(32.0).reshape(8, 4))
    unsharded = MAKE[name]([reference])
    for _ in range(4):
        step(weight, optimizer)
        sync()
        step(reference, unsharded)
        assert split_by(weight, MESH, SPEC)
        for key in SAME_SHAPE[name]:
            assert split_by(optimizer.state[weight][key], MESH, SPEC)
    torch.testing.assert_close(weight.detach().cpu(), reference.detach())


@pytest.mark.parametrize("name", MAKE)
def test_loaded_state_is_split_before_it_is_used(name):
    weight = parameter()
    optimizer = MAKE[name]([weight])
    step(weight, optimizer)
    sync()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)

    other = parameter()
    resumed = MAKE[name]([other])
    resumed.load_state_dict(torch.load(file, map_location="cpu"))
    for key in SAME_SHAPE[name]:
        assert spmd.get_sharding(resumed.state[other][key]) is None
    spmd.shard_optimizer(resumed)
    for key in SAME_SHAPE[name]:
        assert piece_shapes(resumed.state[other][key]) == [(2, 2)] * 8


def test_loaded_state_is_split_by_the_next_step_too():
    weight = parameter()
    optimizer = MAKE["AdamW"]([weight])
    step(weight, optimizer)
    sync()
    saved = copy.deepcopy(optimizer.state_dict())
    sync()  # now the copy is data, whole or not
    optimizer.load_state_dict(saved)
    state = optimizer.state[weight]["exp_avg"]
    assert spmd.get_sharding(state) is None
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(spmd.get_sharding(state)))
    step(weight, optimizer)
    assert seen == [spmd.get_sharding(weight)]  # before the step already
    sync()
    assert split_by(optimizer.state[weight]["exp_avg"], MESH, SPEC)


def test_state_made_on_the_cpu_is_brought_along():
    model, reference = nn.Linear(4, 8, bias=False), nn.Linear(4, 8, bias=False)
    reference.load_state_dict(model.state_dict())
    optimizers = []
    for m in (model, reference):
        optimizers.append(torch.optim.AdamW(m.parameters(), lr=0.1))
        step(m.weight, optimizers[-1])
    spmd.to_device(model)
    spmd.mark_sharding(model.weight, MESH, SPEC)
    step(model.weight, optimizers[0])
    step(reference.weight, optimizers[1])
    sync()
    torch.testing.assert_close(model.weight.detach().cpu(), reference.weight.detach())
    state = optimizers[0].state[model.weight]
    assert split_by(state["exp_avg"], MESH, SPEC) and state["step"].device.type == "cpu"


def test_state_follows_a_parameter_that_is_annotated_anew():
    weight = parameter()
    optimizer = MAKE["AdamW"]([weight])
    step(weight, optimizer)
    sync()
    spmd.clear_sharding(weight)
    spmd.mark_sharding(weight, MESH, (None, "fsdp"))
    step(weight, optimizer)
    sync()
    assert split_by(optimizer.state[weight]["exp_avg"], MESH, (None, "fsdp"))
    assert split_by(weight, MESH, (None, "fsdp"))


def test_a_dim_that_does_not_divide_is_not_warned_of_again():
    weight = nn.Parameter(on_device(9, 3))
    with pytest.warns(UserWarning, match="does not divide"):
        spmd.mark_sharding(weight, MESH, ("fsdp", None))
    optimizer = MAKE["AdamW"]([weight])
    step(weight, optimizer)
    assert spmd.get_sharding(optimizer.state[weight]["exp_avg"]).spec[0] == "fsdp"


def test_an_unmarked_parameters_state_is_left_alone():
    weight = parameter(mark=False)
    optimizer = MAKE["AdamW"]([weight])
    step(weight, optimizer)
    assert spmd.get_sharding(optimizer.state[weight]["exp_avg"]) is None


def test_an_optimizer_over_cpu_parameters_is_left_alone():
    weight = nn.Parameter(torch.ones(8, 4))
    optimizer = MAKE["AdamW"]([weight])
    step(weight, optimizer)
    assert spmd.shard_optimizer(optimizer) is optimizer
    assert spmd.get_sharding(optimizer.state[weight]["exp_avg"]) is None


def test_a_parameter_without_a_gradient_keeps_its_spec():
    used, unused = parameter(), parameter()
    optimizer = MAKE["AdamW"]([used, unused])
    step(used, optimizer)
    sync()
    assert split_by(unused, MESH, SPEC)
