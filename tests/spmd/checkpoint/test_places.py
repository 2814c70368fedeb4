"""Which tensors there are, and their keys."""

import torch
from torch import nn

from spmd.checkpoint._places import (
    Places,
    extra_places,
    join,
    model_places,
    optimizer_names,
    optimizer_places,
    parameter_names,
)
from tests.spmd.checkpoints import Uneven, with_moments


def keys(found):
    return [place.key for place in found]


def test_a_model_has_what_its_state_dict_has():
    model = Uneven()
    assert sorted(keys(model_places(model, ""))) == sorted(model.state_dict())
    places = Places.of(model_places(model))
    assert places.aliases == {"model.head.weight": "model.embed.weight"}
    assert len(places.first) == len(model.state_dict()) - 1


def test_modules_that_are_shared():
    layer = nn.Linear(2, 2)
    places = Places.of(model_places(nn.ModuleList([layer, layer])))
    assert keys(places.first) == ["model.0.weight", "model.0.bias"]
    assert places.aliases == {
        "model.1.weight": "model.0.weight",
        "model.1.bias": "model.0.bias",
    }


def test_wrappers_do_not_show():
    inner = nn.ModuleDict({"module": nn.Linear(2, 2)})  # the user's own name
    wrapped = nn.ModuleDict({"a": nn.DataParallel(inner)})
    assert keys(model_places(wrapped))[0] == "model.a.module.weight"
    deep = nn.Module()
    deep._fsdp_wrapped_module = nn.Module()
    deep._fsdp_wrapped_module.layer = nn.Module()
    deep._fsdp_wrapped_module.layer._checkpoint_wrapped_module = nn.Linear(1, 1)
    assert keys(model_places(deep)) == ["model.layer.weight", "model.layer.bias"]
    assert list(parameter_names(deep).values()) == ["layer.weight", "layer.bias"]


def test_an_optimizer():
    model = Uneven()
    optimizer = with_moments(model)
    found = keys(optimizer_places(model, optimizer))
    assert "optimizer.embed.weight.exp_avg" in found and len(found) == 12
    stranger = torch.optim.SGD([nn.Parameter(torch.ones(1)), model.scale])
    assert optimizer_names(model, stranger) == [["param_groups.0.0", "scale"]]


def test_extra():
    extra = {
        "m": nn.Linear(1, 1),
        "d": {"x": [torch.ones(1)], "y": 3},
        "t": torch.ones(1),
    }
    assert keys(extra_places(extra)) == [
        "extra.m.weight",
        "extra.m.bias",
        "extra.d.x.0",
        "extra.t",
    ]
    assert (join("a", "b"), join("", "b"), join("a", "")) == ("a.b", "b", "a")


def test_places_are_read_and_written():
    model = nn.Linear(2, 2)
    place = next(iter(model_places(model)))
    new = nn.Parameter(torch.zeros(2, 2))
    place.put(new)
    assert place.read() is new and model.weight is new
