"""What a wrapper gives back, and that it behaves as the module."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh
from tests.fsdpv2.wrapping import (
    DIM,
    FLAT,
    Block,
    all_split,
    batch,
    loss_of,
    model,
    specs,
    wrap,
)
from tests.on_device import as_tiles, constraints, sync


class Returns(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(x)


@dataclasses.dataclass
class Output:
    loss: Any
    logits: Any


SPLIT = as_tiles(FLAT, ("fsdp", None))


@pytest.mark.parametrize(
    "make, pick",
    [
        (lambda x: x * 2, lambda o: [o]),
        (lambda x: (x * 2, x + 1), lambda o: list(o)),
        (lambda x: [x * 2, x + 1], lambda o: list(o)),
        (lambda x: {"a": x * 2, "b": x + 1}, lambda o: list(o.values())),
        (lambda x: (x.mean(), x * 2, None), lambda o: [o[1]]),
        (lambda x: Output(x.mean(), x * 2), lambda o: [o.logits]),
        (lambda x: Output(None, (x * 2, [x + 1])), lambda o: [*o.logits[:1]]),
    ],
)
def test_every_container_comes_back_with_its_tensors_split(make, pick):
    out = wrap(Returns(make))(batch())
    assert type(out) is type(make(torch.ones(8, DIM)))
    for tensor in pick(out):
        assert constraints(tensor)[-1] == SPLIT
        assert spmd.get_sharding(tensor).spec == ("fsdp", None)


def test_a_hugging_face_output_comes_back_split():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    make = lambda x: outputs.CausalLMOutput(loss=x.mean(), logits=x * 2)  # noqa: E731
    out = wrap(Returns(make))(batch())
    assert type(out) is outputs.CausalLMOutput
    assert constraints(out.logits) == [SPLIT] and constraints(out.loss) == []


def test_no_output_is_fine():
    assert wrap(Returns(lambda x: None))(batch()) is None


def test_a_custom_shard_output_is_called_instead():
    calls = []

    def custom(output: torch.Tensor, mesh: Mesh) -> None:
        calls.append(mesh)
        spmd.mark_sharding(output, mesh, (None, "fsdp"))

    wrapped = wrap(nn.Linear(DIM, DIM), shard_output=custom)
    out = wrapped(batch())
    assert calls == [FLAT] and spmd.get_sharding(out).spec == (None, "fsdp")


def test_a_custom_shard_output_may_return_another():
    wrapped = wrap(model(), shard_output=lambda out, mesh: (out, mesh))
    assert wrapped(batch())[1] == FLAT


def test_what_the_wrapper_lacks_the_module_has():
    module = model()
    wrapped = wrap(module)
    assert wrapped.module is module
    assert wrapped.note == "mine" and wrapped.describe() == "mine 2"
    assert wrapped.layers is module.layers and wrapped.scale is module.scale
    with pytest.raises(AttributeError, match="'Model' object has no attribute 'nope'"):
        _ = wrapped.nope
    assert not hasattr(wrapped, "nope")


def test_a_sequential_is_indexed():
    wrapped = wrap(nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU()))
    assert isinstance(wrapped[0], nn.Linear) and len(wrapped) == 2
    assert len(wrapped[:1]) == 1 and bool(wrapped)
    assert bool(wrap(nn.Sequential(Block())))
    with pytest.raises(TypeError):
        len(wrap(model()))


def test_train_and_eval_reach_everything():
    module = model()
    wrapped = wrap(module, auto_wrap_policy=Block)
    for mode in (False, True):
        assert wrapped.train(mode) is wrapped
        everything = [wrapped, module, *wrapped.modules(), *module.modules()]
        everything += [m.module for m in wrapped.layers]
        assert all(m.training is mode for m in everything)
    wrapped.eval()
    assert not wrapped.layers[0].module.training
    outer = nn.Sequential(wrapped)
    outer.train()
    assert module.training and wrapped.layers[0].module.training
    assert not wrap(model().eval()).training


def test_requires_grad_and_zero_grad():
    wrapped = wrap(model())
    loss_of(wrapped, batch()).backward()
    wrapped.zero_grad()
    assert all(p.grad is None for p in wrapped.parameters())
    wrapped.requires_grad_(False)
    assert not any(p.requires_grad for p in wrapped.module.parameters())


def test_the_text_of_a_wrapper():
    wrapped = wrap(model(), auto_wrap_policy=Block)
    assert repr(wrapped).startswith("FSDPv2[Model, Mesh(fsdp=8)](")
    assert "(0-1): 2 x FSDPv2[Block, Mesh(fsdp=8)](" in repr(wrapped)
    assert "in_features=16" in repr(wrap(nn.Linear(DIM, DIM)))


@pytest.mark.parametrize("how", ["bfloat16", "to", "to materialised"])
def test_another_dtype_keeps_specs_and_identity(how):
    wrapped = wrap(model(), auto_wrap_policy=Block)
    held = list(wrapped.parameters())
    before = specs(wrapped)
    if how == "to materialised":
        wrapped(batch())
        sync()
    wrapped.bfloat16() if how == "bfloat16" else wrapped.to(torch.bfloat16)
    assert all(a is b for a, b in zip(held, wrapped.parameters(), strict=True))
    assert {p.dtype for p in wrapped.parameters()} == {torch.bfloat16}
    assert specs(wrapped) == before
    out = wrapped(batch().to(torch.bfloat16))
    out.sum().backward()
    sync()
    assert out.dtype == torch.bfloat16 and all_split(wrapped)


def test_to_the_cpu_and_back_keeps_specs_and_ties():
    module = nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, DIM))
    module[1].weight = module[0].weight
    wrapped = wrap(module)
    before = specs(wrapped)
    wrapped.to("cpu")
    assert wrapped[0].weight.device.type == "cpu"
    assert wrapped[0].weight is wrapped[1].weight
    wrapped.to("xla")
    assert specs(wrapped) == before and all_split(wrapped)
    assert wrapped[0].weight is wrapped[1].weight
