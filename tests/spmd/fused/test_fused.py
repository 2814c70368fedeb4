"""Fused layers that are taken apart compute what they did, or are refused."""

import copy
import re

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import spmd
from spmd import Mesh
from spmd._fused.fused import FusedLinear, split_fused
from spmd._fused.rule import Fused
from spmd._marking.promise import kept, promise
from tests.on_device import sync

SIZES = (("q", 6), ("k", 2), ("v", 2))


class Model(nn.Module):
    def __init__(self, layer=None):
        super().__init__()
        self.qkv = nn.Linear(4, 10) if layer is None else layer
        self.out = nn.Linear(10, 4)

    def forward(self, x):
        q, k, v = self.qkv(x).split([6, 2, 2], -1)
        return self.out(torch.cat([v, q, k], -1))


def rule(layer=None, **options):
    dim = 1 if isinstance(layer, Conv1D) else 0
    return {"qkv": Fused("qkv", SIZES, **{"dim": dim, **options})}


LAYERS = {
    "linear": lambda: nn.Linear(4, 10),
    "no_bias": lambda: nn.Linear(4, 10, bias=False),
    "conv1d": lambda: Conv1D(10, 4),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_values_and_gradients(kind):
    layer = LAYERS[kind]()
    model = Model(layer)
    twin = copy.deepcopy(model)
    split_fused(model, rule(layer))
    x = torch.randn(3, 5, 4)
    assert torch.allclose(model(x), twin(x), atol=1e-6)
    model(x).square().sum().backward()
    twin(x).square().sum().backward()
    dim = rule(layer)["qkv"].dim
    for key, parameter in twin.qkv.named_parameters():
        cut = dim if key == "weight" else 0
        grads = [getattr(getattr(model.qkv, n), key).grad for n, _ in SIZES]
        assert torch.allclose(torch.cat(grads, cut), parameter.grad, atol=1e-5)
    assert model.state_dict().keys() == twin.state_dict().keys()
    for key, value in twin.state_dict().items():
        assert torch.equal(model.state_dict()[key], value)


def test_names_and_what_the_module_says():
    model = Model()
    split_fused(model, rule())
    names = [n for n, _ in model.named_parameters()]
    assert names[:4] == ["qkv.q.weight", "qkv.q.bias", "qkv.k.weight", "qkv.k.bias"]
    assert type(model.qkv.q) is nn.Linear and model.qkv.q.out_features == 6
    assert "parts of one Linear" in repr(model)


def test_the_whole_can_be_read():
    model, twin = Model(), Model(nn.Linear(4, 10, bias=False))
    weight = model.qkv.weight.detach().clone()
    for each in (model, twin):
        split_fused(each, rule())
    assert torch.equal(model.qkv.weight, weight)
    assert model.qkv.bias.shape == (10,) and twin.qkv.bias is None


def test_conv1d_of_its_class():
    model = Model(Conv1D(10, 4))
    split_fused(model, rule(model.qkv))
    assert type(model.qkv.v) is Conv1D and model.qkv.v.nf == 2
    assert model.qkv.v.weight.shape == (4, 2)


def test_on_meta():
    with spmd.meta_parameters():
        model = Model()
    split_fused(model, rule())
    assert model.qkv.k.weight.device.type == "meta"
    assert model.qkv.k.weight.shape == (2, 4)


def test_on_the_devices():
    model = Model()
    weight = model.qkv.weight.detach().clone()
    spmd.to_device(model)
    split_fused(model, rule())
    spmd.mark_sharding(model.qkv.q.weight, Mesh({"fsdp": 8}), (None, None))
    sync()
    assert torch.equal(model.qkv.weight.detach().cpu(), weight)


def test_frozen_and_with_attributes_and_gradients():
    model = Model()
    model.qkv.bias.requires_grad_(False)
    model.qkv.weight.kind = "attention"
    model.qkv.weight.grad = torch.arange(40.0).reshape(10, 4)
    split_fused(model.eval(), rule())
    assert not model.qkv.k.bias.requires_grad and model.qkv.k.weight.requires_grad
    assert model.qkv.v.weight.kind == "attention"
    assert torch.equal(model.qkv.k.weight.grad, torch.arange(24.0, 32.0).reshape(2, 4))
    assert not model.qkv.q.training


def test_again():
    model = Model()
    split_fused(model, rule())
    first = model.qkv
    split_fused(model, rule())
    assert model.qkv is first


def test_copies_compute_with_their_own():
    model = Model()
    split_fused(model, rule())
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.qkv.q.weight.zero_()
    assert model.qkv.q.weight.abs().sum() > 0


@pytest.mark.parametrize("moved", [False, True], ids=["cpu", "xla"])
def test_an_optimizer_of_before_refuses_to_step(moved):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    if moved:
        spmd.to_device(model)
    split_fused(model, rule())
    model(torch.ones(1, 4, device=model.out.weight.device)).sum().backward()
    with pytest.raises(
        ValueError,
        match=r"AdamW holds qkv\.weight \[10, 4\].* q\.weight, k\.weight, v\.weight in "
        r"qkv\. Make the optimizer after the model is sharded",
    ):
        optimizer.step()
    torch.optim.AdamW(model.parameters()).step()


def test_an_optimizer_of_before_in_a_trace():
    with spmd.meta_parameters():
        model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    split_fused(model, rule())

    def step(x):
        model(x).sum().backward()
        optimizer.step()

    with pytest.raises(ValueError, match="AdamW holds qkv"):
        spmd.trace(
            step,
            torch.ones(8, 4),
            model=model,
            optimizer=optimizer,
            mesh=Mesh({"fsdp": 8}),
        )


def refused(model, match, fused=None):
    before = model.qkv
    with pytest.raises(ValueError, match=match):
        split_fused(model, rule() if fused is None else fused)
    assert model.qkv is before


def test_other_parts_than_before():
    model = Model()
    split_fused(model, rule())
    other = {"qkv": Fused("qkv", (("q", 6), ("kv", 4)))}
    refused(model, r"in parts already: .*'q.weight': 6.*\{'q': 6, 'kv': 4\}", other)


def test_no_linear_layer():
    refused(Model(nn.Conv1d(4, 10, 1)), r"qkv \(Conv1d\) is no plain linear layer")
    refused(Model(nn.Identity()), r"\(Identity\) is no plain linear layer")


def test_sizes_that_do_not_fit():
    refused(Model(nn.Linear(4, 12)), r"have 10 features; its weight is \[12, 4\]")
    refused(Model(Conv1D(10, 4)), r"along dim 0 .* output features in dim 1")


@pytest.mark.parametrize(
    "sizes", [(("q", 5), ("q", 5)), (("q", 10), ("k", 0))], ids=["twice", "empty"]
)
def test_names_that_repeat_and_empty_parts(sizes):
    refused(Model(), "names repeat, or a part is empty", {"qkv": Fused("qkv", sizes)})


def test_lazy_and_buffered_layers():
    refused(Model(nn.LazyLinear(10)), "buffers, or a weight without a shape")
    model = Model()
    model.qkv.register_buffer("scale", torch.ones(1))
    refused(model, "has buffers")


def test_hooks_and_adapters():
    model = Model()
    model.qkv.register_forward_hook(lambda *_: None)
    refused(model, "has submodules or hooks")
    model = Model()
    model.qkv.adapter = nn.Linear(4, 4)
    refused(model, "has submodules or hooks")


def test_tied():
    model = Model()
    model.other = nn.Linear(4, 10)
    model.other.weight = model.qkv.weight
    refused(model, re.escape("qkv shares a parameter with other.weight"))


def test_shared():
    model = Model()
    model.again = model.qkv
    refused(model, re.escape("qkv shares a parameter with again.weight"))


def test_annotated():
    with spmd.meta_parameters():
        model = Model()
    spmd.mark_sharding(model.qkv.bias, Mesh({"fsdp": 8}), (None,))
    refused(model, r"its bias \[10\] is annotated already; take it apart first")


def test_promised():
    with spmd.meta_parameters():
        model = Model()
    promise(model.qkv.weight, lambda _: None)
    refused(model, r"its weight \[10, 4\] waits for values that were promised")
    kept(model.qkv.weight)


def test_nothing_to_do():
    model = Model()
    split_fused(model, {})
    assert not isinstance(model.qkv, FusedLinear)
