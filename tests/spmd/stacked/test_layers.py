import copy

import pytest
import torch
from torch import nn

import spmd
from spmd._fused.fused import split_fused
from spmd._fused.rule import Fused
from spmd._marking.mark import get_sharding
from spmd._stacked.layers import Stacked, layer_names, per_layer
from tests.on_device import sync
from tests.spmd.stacked_model import Layer, Model, build, stacked

MESH = spmd.Mesh({"fsdp": 8})


def same(got, want):
    assert list(got) == list(want)
    for name, tensor in want.items():
        torch.testing.assert_close(got[name].cpu(), tensor, rtol=0, atol=0, msg=name)


def test_names_and_shapes():
    model = stacked()
    assert {n: list(p.shape) for n, p in model.named_parameters() if "*" in n} == {
        "layers.*.norm.weight": [3, 8],
        "layers.*.norm.bias": [3, 8],
        "layers.*.up.weight": [3, 8, 8],
        "layers.*.up.bias": [3, 8],
    }
    assert dict(model.named_buffers())["layers.*.seen"].shape == (3, 3)
    assert layer_names(model.layers) == ("0", "1", "2")
    assert layer_names(model) == ()
    assert isinstance(model.layers, nn.ModuleList)
    assert "3 layers, tensors [3, ...]" in repr(model)


def test_the_state_is_that_of_the_layers():
    want = build().state_dict()
    model = stacked()
    same(model.state_dict(), want)
    assert model.state_dict()["layers.1.up.weight"].untyped_storage().data_ptr() == (
        model.get_parameter("layers.*.up.weight").untyped_storage().data_ptr()
    )
    kept = model.state_dict(keep_vars=True)
    assert kept["layers.0.up.weight"].requires_grad


def test_what_comes_out_and_its_gradients_through_the_layers_as_views():
    x = torch.rand(4, 8)
    plain, model = build(), stacked()
    plain(x).square().sum().backward()
    model(x).square().sum().backward()
    named = {n: p.grad for n, p in model.named_parameters()}
    got = dict(per_layer(model, named.items()))
    want = {n: p.grad for n, p in plain.named_parameters()}
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, msg=name)


@pytest.mark.parametrize("assign", [False, True])
def test_loading_the_state_of_layers(assign):
    torch.manual_seed(5)
    other = Model()
    model = stacked()
    assert not any(model.load_state_dict(other.state_dict(), assign=assign))
    same(model.state_dict(), other.state_dict())
    assert isinstance(model.get_parameter("layers.*.up.weight"), nn.Parameter)


def test_loading_a_state_that_is_stacked():
    torch.manual_seed(5)
    other = stacked(Model())
    state = dict(other.named_parameters()) | dict(other.named_buffers())
    model = stacked()
    model.load_state_dict({k: v.detach() for k, v in state.items() if "mask" not in k})
    same(model.state_dict(), other.state_dict())


def test_what_a_state_lacks_or_has_besides_is_named_by_layer():
    model = stacked()
    before = copy.deepcopy(model.state_dict())
    state = Model().state_dict()
    del state["layers.1.up.bias"]
    state["layers.2.up.extra"] = torch.zeros(1)
    state["layers.7.up.bias"] = torch.zeros(8)
    with pytest.raises(RuntimeError, match=r"layers\.1\.up\.bias.*") as caught:
        model.load_state_dict(state)
    for name in ("layers.2.up.extra", "layers.7.up.bias"):
        assert f'"{name}"' in str(caught.value)
    assert "*" not in str(caught.value)
    found = model.load_state_dict(state, strict=False)
    assert found.missing_keys == ["layers.1.up.bias"]
    got = model.state_dict()
    torch.testing.assert_close(got["layers.1.up.bias"], before["layers.1.up.bias"])
    torch.testing.assert_close(got["layers.2.up.bias"], state["layers.2.up.bias"])


def test_a_layer_of_another_size():
    state = Model().state_dict()
    state["layers.1.up.weight"] = torch.zeros(8, 9)
    with pytest.raises(RuntimeError, match=r"size mismatch for layers\.1\.up\.weight"):
        stacked().load_state_dict(state)


def test_a_layer_is_made_of_views():
    model = stacked()
    layer = model.layers[1]
    assert isinstance(layer, Layer) and layer.up.out_features == 8
    with torch.no_grad():
        layer.up.bias.fill_(7)
        list(model.layers)[2].up.bias.fill_(8)
    bias = model.get_parameter("layers.*.up.bias")
    assert bias[1:, 0].tolist() == [7, 8] and bias[0, 0] != 7
    assert len(model.layers[1:]) == 2 and len(model.layers) == 3
    assert torch.equal(model.layers[-1].up.bias, bias[2])
    with pytest.raises(IndexError, match="index 3 is out of range of 3 layers"):
        model.layers[3]
    model.eval()
    assert not model.layers[1].up.training


def test_a_function_is_applied_to_each_layer():
    def init(module):
        if isinstance(module, nn.Linear):
            assert module.weight.ndim == 2
            nn.init.normal_(module.weight)

    plain, model = build(), stacked()
    torch.manual_seed(1)
    plain.apply(init)
    torch.manual_seed(1)
    assert model.apply(init) is model
    same(model.state_dict(), plain.state_dict())


def test_a_copy_has_tensors_of_its_own():
    model = stacked()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.layers[1].up.bias.fill_(7)
    same(model.state_dict(), build().state_dict())
    assert twin.state_dict()["layers.1.up.bias"][0] == 7
    assert not any(model.load_state_dict(twin.state_dict()))


class Tied(Layer):
    def __init__(self):
        super().__init__()
        self.again = nn.Linear(8, 8, bias=False)
        self.again.weight = self.up.weight


def test_what_is_tied_inside_a_layer_stays_tied():
    model = stacked(build(kind=Tied))
    assert "layers.*.again.weight" not in dict(model.named_parameters())
    layer = model.layers[1]
    assert layer.again.weight is layer.up.weight
    same(model.state_dict(), build(kind=Tied).state_dict())


def test_a_layer_with_a_weight_in_parts():
    def parts(model):
        rule = Fused("layers.*.up", (("a", 6), ("b", 2)), 0)
        split_fused(model, {f"layers.{i}.up": rule for i in range(3)})
        return model

    model = stacked(parts(build()))
    assert model.get_parameter("layers.*.up.a.weight").shape == (3, 6, 8)
    want = build().state_dict()
    same(model.state_dict(), want)
    torch.manual_seed(5)
    other = Model().state_dict()
    model.load_state_dict(other)
    same(model.state_dict(), other)
    del other["layers.2.up.weight"]
    with pytest.raises(RuntimeError, match=r"Missing.*\"layers\.2\.up\.weight\"\. $"):
        model.load_state_dict(other)


def test_on_the_device():
    plain = build()
    model = spmd.to_device(build())
    for layer in model.layers:
        spmd.mark_sharding(layer.up.weight, MESH, ("fsdp", None))
    model = stacked(model)
    weight = model.get_parameter("layers.*.up.weight")
    assert get_sharding(weight).spec == (None, "fsdp", None)
    assert get_sharding(model.layers[1].up.weight).spec == ("fsdp", None)
    state = model.state_dict()
    assert get_sharding(state["layers.2.up.weight"]).spec == ("fsdp", None)
    same(state, plain.state_dict())
    with torch.no_grad():
        model.layers[1].up.bias.fill_(7)
    sync()
    assert model.get_parameter("layers.*.up.bias").cpu()[:, 0].tolist()[1] == 7


@pytest.mark.parametrize(
    "change",
    [
        lambda layers: layers.append(Layer()),
        lambda layers: layers.extend([Layer()]),
        lambda layers: layers.insert(0, Layer()),
        lambda layers: layers.pop(0),
        lambda layers: layers.__setitem__(0, Layer()),
        lambda layers: layers.__delitem__(0),
    ],
)
def test_the_list_cannot_be_changed_any_more(change):
    model = stacked()
    assert isinstance(model.layers, Stacked)
    with pytest.raises(TypeError, match="change the list before it is wrapped"):
        change(model.layers)
