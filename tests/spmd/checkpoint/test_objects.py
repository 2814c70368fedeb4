"""Small states: schedules, several of them, and what comes back of containers."""

from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from spmd import checkpoint
from spmd.checkpoint import _objects
from spmd.checkpoint._write import packed


def schedulers(optimizer):
    lr = torch.optim.lr_scheduler
    first = lr.LinearLR(optimizer, total_iters=3)
    second = lr.MultiStepLR(optimizer, [4, 6], gamma=0.5)
    return lr.SequentialLR(optimizer, [first, second], milestones=[3])


def rates(model, optimizer, scheduler, num):
    found = []
    for _ in range(num):
        optimizer.step()
        scheduler.step()
        found.append(optimizer.param_groups[0]["lr"])
    return found


def test_a_schedule_goes_on(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = schedulers(optimizer)
    rates(model, optimizer, scheduler, 5)
    checkpoint.save(tmp_path / "a", model, optimizer, scheduler=[scheduler])
    wanted = rates(model, optimizer, scheduler, 5)
    fresh = torch.optim.SGD(model.parameters(), lr=7.0)
    again = schedulers(fresh)
    checkpoint.load(tmp_path / "a", model, fresh, scheduler=[again])
    assert rates(model, fresh, again, 5) == wanted


class Thing:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def test_several_things():
    things = {"a": Thing(1), "b": [Thing(2), Thing(torch.ones(2))]}
    state = _objects.state_of(things)
    others = {"a": Thing(0), "b": [Thing(0), Thing(0)]}
    _objects.set_state_of(others, state, "scheduler")
    assert others["b"][0].value == 2 and others["b"][1].value.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match=r"scheduler has \['a'\], the checkpoint"):
        _objects.set_state_of({"a": Thing(0)}, state, "scheduler")
    with pytest.raises(ValueError, match=r"1 of scheduler\['b'\] were given, .* has 2"):
        _objects.set_state_of({"a": Thing(0), "b": [Thing(0)]}, state, "scheduler")


def test_containers_on_the_host():
    value = {
        "t": torch.ones(2).to("xla"),
        "c": Counter([1, 1]),
        "o": OrderedDict(a=(1, [2])),
    }
    held = _objects.on_host(value)
    assert held["t"].device.type == "cpu"
    assert type(held["c"]) is Counter and type(held["o"]) is OrderedDict
    assert held["o"] == {"a": (1, [2])} and packed(held, "x")
    assert type(_objects.on_host([np.float64(0.5)])[0]) is float


def test_extra_is_kept_without_its_tensors():
    extra = {"m": nn.Linear(1, 1), "s": Thing(1), "t": torch.ones(1), "n": [1, (2,)]}
    found = _objects.extra_object({**extra, "d": {"x": torch.ones(1), "y": (3, "z")}})
    assert found == {
        "s": {"value": 1},
        "t": _objects.ABSENT,
        "n": [1, (2,)],
        "d": {"x": _objects.ABSENT, "y": [3, "z"]},
    }
