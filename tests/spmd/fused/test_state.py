"""Names and shapes stay those of the whole."""

import copy
import pickle

import pytest
import torch
from torch import nn

from spmd._fused.state import Pieces, hold_in_pieces, pieces_of

WHOLE = torch.arange(20.0).reshape(10, 2)
BIAS = torch.arange(10.0)
HELD = (
    Pieces("weight", 0, {"q.weight": 6, "k.weight": 4}),
    Pieces("bias", 0, {"q.bias": 6, "k.bias": 4}),
)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(2, 6), nn.Linear(2, 4)
        hold_in_pieces(self, HELD)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.layer = Layer()
        self.q = nn.Linear(2, 2)


def state(model):
    whole = {"layer.weight": WHOLE.clone(), "layer.bias": BIAS.clone()}
    rest = {k: v for k, v in model.state_dict().items() if k not in whole}
    return {**rest, **whole}


def test_ranges_and_views():
    assert list(HELD[0].ranges()) == [("q.weight", 0, 6), ("k.weight", 6, 4)]
    taken = HELD[0].take(WHOLE)
    assert torch.equal(taken["k.weight"], WHOLE[6:])
    assert taken["q.weight"].data_ptr() == WHOLE.data_ptr()


def test_pieces_of():
    assert pieces_of(Layer()) == HELD
    assert pieces_of(nn.Linear(2, 2)) == ()


def test_state_dict_has_the_names_and_order_of_before():
    model = Model()
    assert list(model.state_dict()) == [
        "first.weight",
        "first.bias",
        "layer.weight",
        "layer.bias",
        "q.weight",
        "q.bias",
    ]
    assert model.state_dict()["layer.weight"].shape == (10, 2)
    assert list(Layer().state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize("assign", [False, True])
def test_round_trip(assign):
    model = Model()
    result = model.load_state_dict(state(model), assign=assign)
    assert not result.missing_keys and not result.unexpected_keys
    assert torch.equal(model.layer.k.weight, WHOLE[6:])
    assert torch.equal(model.layer.q.bias, BIAS[:6])
    assert torch.equal(model.state_dict()["layer.weight"], WHOLE)


def test_the_given_state_is_not_changed():
    model, given = Model(), state(Model())
    before = list(given)
    model.load_state_dict(given)
    assert list(given) == before


def test_missing_and_unexpected_are_named_as_wholes():
    model = Model()
    before = model.layer.q.weight.detach().clone()
    given = {k: v for k, v in state(model).items() if k != "layer.weight"}
    result = model.load_state_dict({**given, "layer.more": WHOLE}, strict=False)
    assert result.missing_keys == ["layer.weight"]
    assert result.unexpected_keys == ["layer.more"]
    assert torch.equal(model.layer.q.weight, before)
    with pytest.raises(RuntimeError, match=r'Missing key.*"layer\.weight"'):
        model.load_state_dict(given)


def test_another_size():
    model = Model()
    given = {**state(model), "layer.weight": torch.zeros(9, 2)}
    with pytest.raises(
        RuntimeError,
        match=r"size mismatch for layer\.weight: dim 0 of \[9, 2\] has to be 10: "
        r"q\.weight 6 \+ k\.weight 4",
    ):
        model.load_state_dict(given)


def test_a_state_in_pieces():
    model, other = Model(), Model()
    model.load_state_dict(dict(other.named_parameters()))
    assert torch.equal(model.layer.k.weight, other.layer.k.weight)


def test_meta():
    with torch.device("meta"):
        model = Model()
    assert model.state_dict()["layer.weight"].device.type == "meta"
    model.load_state_dict(state(Model()), assign=True)
    assert torch.equal(model.layer.k.weight, WHOLE[6:])


@pytest.mark.parametrize(
    "twin",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))],
    ids=["deepcopy", "pickle"],
)
def test_copies(twin):
    model = Model()
    other = twin(model)
    other.load_state_dict(state(model))
    assert torch.equal(other.layer.k.weight, WHOLE[6:])
    assert not torch.equal(model.layer.k.weight, WHOLE[6:])
