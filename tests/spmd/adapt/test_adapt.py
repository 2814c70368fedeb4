"""`adapt`: what a plan's modules become."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from spmd._adapt.adapt import adapt
from spmd._adapt.rule import Adapted
from tests.spmd.adapted import loss_and_gradients
from tests.spmd.hf_models import CASES

HEADS = {"model.layers.0.self_attn": Adapted("", "repeat_heads", 4)}


def test_twice_is_once():
    model = CASES["llama-few-kv"].build(num_hidden_layers=1)
    adapt(model, HEADS)
    adapt(model, HEADS)
    assert model.get_submodule("model.layers.0.self_attn").num_key_value_groups == 2


def test_in_another_way():
    model = CASES["llama-few-kv"].build(num_hidden_layers=1)
    adapt(model, HEADS)
    (name,) = HEADS
    with pytest.raises(ValueError, match="by 'repeat_heads' of 4 already, and cannot"):
        adapt(model, {name: Adapted("", "repeat_heads", 8)})


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ("unflatten", "a: Linear is not known to flatten; layers that do: OPTDec"),
        ("repeat_heads", "a: Linear has no key and value heads that are known here"),
        ("pad_positions", "a: Linear has no embeddings of positions, layers and a"),
    ],
)
def test_a_module_that_it_does_not_know(how, match):
    model = nn.ModuleDict({"a": nn.Linear(2, 2)})
    with pytest.raises(ValueError, match=match):
        adapt(model, {"a": Adapted("", how, 4)})


def test_a_copy_has_weights_of_its_own():
    model = CASES["llama-few-kv"].build(num_hidden_layers=1)
    adapt(model, HEADS)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.get_parameter("model.layers.0.self_attn.k_proj.weight").zero_()
    batch = CASES["llama-few-kv"].batch()
    first, second = (loss_and_gradients(m, batch)[""] for m in (model, twin))
    assert first != second
