"""Optimizers, new and used, get state and hyperparameters."""

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh, checkpoint
from tests.on_device import split_by
from tests.spmd.checkpoints import MESHES, Uneven, moments, same, split, with_moments

pytestmark = pytest.mark.filterwarnings("ignore:.*does not divide over")


def two_groups(model, **options):
    weights = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "lr": 0.5}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.5, 0.75), **options)


def test_hyperparameters_come_back_and_how_to_run_stays(tmp_path):
    model = nn.Linear(3, 3)
    optimizer = two_groups(model, foreach=False)
    optimizer.param_groups[1]["lr"] = 0.25
    checkpoint.save(tmp_path / "a", model, optimizer)
    other = torch.optim.AdamW(two_groups(model).param_groups, capturable=True)
    for group in other.param_groups:
        group.update(betas=(0.1, 0.1), lr=9.0, foreach=True, capturable=True)
    checkpoint.load(tmp_path / "a", model, other)
    one, two = other.param_groups
    assert (one["lr"], two["lr"], two["weight_decay"]) == (0.5, 0.25, 0.0)
    assert one["betas"] == (0.5, 0.75)
    assert one["foreach"] is True and one["capturable"] is True


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.Adafactor(p),
    ],
)
def test_every_kind(make, tmp_path):
    torch.manual_seed(0)
    model, other = Uneven(), split(Uneven(), "4x2")
    optimizer, fresh = make(model.parameters()), make(other.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    checkpoint.save(tmp_path / "a", model, optimizer)
    checkpoint.load(tmp_path / "a", other, fresh)
    same(moments(other, fresh), moments(model, optimizer))
    mesh, spec = MESHES["4x2"]
    weight = other.embed.weight
    for value in fresh.state.get(weight, {}).values():
        if torch.is_tensor(value) and value.shape == weight.shape:
            assert split_by(value, mesh, spec)


def test_state_that_was_not_saved_goes(tmp_path):
    model = split(Uneven(), "8")
    plain = torch.optim.AdamW(model.parameters())
    checkpoint.save(tmp_path / "a", model, plain)
    optimizer = with_moments(model)
    checkpoint.load(tmp_path / "a", model, optimizer)
    assert not optimizer.state
    averaged = torch.optim.SGD(model.parameters(), momentum=0.9)
    checkpoint.save(tmp_path / "b", model, averaged)
    for parameter in model.parameters():
        averaged.state[parameter] = {"momentum_buffer": None, "more": 1}
    checkpoint.save(tmp_path / "c", model, averaged)
    averaged.state[model.scale]["else"] = torch.ones(2)
    checkpoint.load(tmp_path / "c", model, averaged)
    assert averaged.state[model.scale] == {"momentum_buffer": None, "more": 1}


def test_a_rate_that_is_a_tensor_stays_the_same_tensor(tmp_path):
    model = nn.Linear(3, 3)
    for device in ("cpu", "xla"):
        rate = torch.tensor(0.5).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
        path = tmp_path / device
        checkpoint.save(path, model, optimizer)
        other = torch.tensor(0.125).to(device)
        fresh = torch.optim.AdamW(model.parameters(), lr=other, capturable=True)
        checkpoint.load(path, model, fresh)
        assert fresh.param_groups[0]["lr"] is other
        assert other.item() == 0.5


def test_capturable_counts_go_to_the_devices(tmp_path):
    model = split(Uneven(), "8")
    optimizer = with_moments(model)
    checkpoint.save(tmp_path / "a", model, optimizer)
    fresh = torch.optim.AdamW(model.parameters(), capturable=True, foreach=False)
    checkpoint.load(tmp_path / "a", model, fresh)
    counts = [fresh.state[p]["step"] for p in model.parameters()]
    assert {c.device.type for c in counts} == {"xla"}
    assert [c.item() for c in counts] == [1.0] * len(counts)


def test_another_optimizer_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    checkpoint.save(tmp_path / "a", model, torch.optim.AdamW(model.parameters()))
    one, *rest = model.parameters()
    cases = [
        (torch.optim.SGD(model.parameters()), "state of AdamW, the optimizer is SGD"),
        (torch.optim.AdamW([one]), "group 0 has 1 parameters, the checkpoint 4"),
        (torch.optim.AdamW([*rest, one]), "group 0 has 0.bias where .* 0.weight"),
        (two_groups(model), "it has 2 groups, the checkpoint 1"),
    ]
    for optimizer, match in cases:
        with pytest.raises(ValueError, match=match):
            checkpoint.load(tmp_path / "a", model, optimizer)


def test_parameters_that_are_none_of_the_models(tmp_path):
    model, extra = nn.Linear(3, 3), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.1, momentum=0.9)
    extra.grad = torch.full((2,), 2.0)
    optimizer.step()
    checkpoint.save(tmp_path / "a", model, optimizer)
    fresh = torch.optim.SGD([*model.parameters(), extra], lr=0.1, momentum=0.9)
    checkpoint.load(tmp_path / "a", model, fresh)
    assert fresh.state[extra]["momentum_buffer"].tolist() == [2.0, 2.0]
    assert spmd.get_sharding(extra) is None and Mesh({"a": 8}).size == 8
