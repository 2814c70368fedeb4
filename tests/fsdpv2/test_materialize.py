import pytest
import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2, materialize
from fsdpv2._recipe import Recipe
from spmd import Mesh
from tests.fsdpv2.layers import (
    FLAT,
    Stack,
    check_close,
    device_ids,
    gradients,
    ids,
    loss_of,
)
from tests.on_device import piece_shapes, split_by

MESH = Mesh({"replica": 2, "fsdp": 4})


def planned(make=Stack, mesh=FLAT, **options):
    with spmd.meta_parameters():
        module = make()
    options.setdefault("min_shard_elements", 1)
    return FSDPv2(module, mesh, **options)


def values(model):
    return {n: p.detach().cpu() for n, p in model.state_dict().items()}


def test_a_planned_model_trains_as_the_unsharded_one_with_its_values():
    model = materialize(planned(remat="full"))
    for parameter in model.parameters():
        assert split_by(parameter, FLAT, spmd.get_sharding(parameter).spec)
    assert piece_shapes(model.embed.weight) == [(64, 4)] * 8
    plain = Stack()
    plain.load_state_dict(values(model))
    check_close(gradients(model, device_ids()), gradients(plain, ids()))


def test_values_do_not_depend_on_the_mesh():
    one, other = (values(materialize(planned(mesh=m))) for m in (FLAT, MESH))
    assert all(torch.equal(one[name], other[name]) for name in one)
    again = values(materialize(planned(), seed=1))
    assert not torch.equal(one["head.weight"], again["head.weight"])
    assert (one["layers.0.norm.weight"] == 1).all()
    assert one["layers.0.up.weight"].std() == pytest.approx(32**-0.5 / 3**0.5, rel=0.1)


def test_no_more_than_a_piece_is_made_at_once(monkeypatch):
    sizes = []
    original = Recipe.piece

    def piece(self, index):
        value = original(self, index)
        sizes.append((value.numel(), torch.Size(self.shape).numel()))
        return value

    monkeypatch.setattr(Recipe, "piece", piece)
    materialize(planned())
    assert len(sizes) == 14 * 8  # norms and biases of 32 and 64 are split too
    assert all(made * 8 == size for made, size in sizes)


def test_dims_that_do_not_divide_and_tensors_that_are_whole():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(9, 17)
            self.b = nn.Linear(17, 2, bias=False)
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x):
            return self.norm(self.b(self.a(x)))

    with torch.device("meta"):
        module = Odd()
    with pytest.warns(UserWarning, match="does not divide"):
        model = materialize(FSDPv2(module, FLAT, min_shard_elements=100))
    assert model.norm.running_var.cpu().tolist() == [1.0, 1.0]
    x = torch.randn(8, 9)
    plain = Odd()
    plain.load_state_dict(values(model))
    got = model(spmd.shard_batch(x, FLAT))
    torch.testing.assert_close(got.cpu(), plain(x), rtol=1e-4, atol=1e-5)


def test_ties_stay_and_an_optimizer_keeps_its_parameters():
    def tied():
        module = Stack()
        module.head.weight = module.embed.weight
        return module

    model = planned(tied)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    materialize(model)
    assert model.head.weight is model.embed.weight
    assert all(p.device.type == "xla" for p in optimizer.param_groups[0]["params"])


def test_what_has_values_keeps_them():
    model = FSDPv2(Stack(), FLAT)
    before = values(model)
    materialize(model)
    assert all(torch.equal(v, before[n]) for n, v in values(model).items())
    with spmd.meta_parameters():
        module = Stack()
    module.head = nn.Linear(32, 64, bias=False)
    before = module.head.weight.detach().clone()
    materialize(module)
    assert torch.equal(module.head.weight.cpu(), before)


def test_hugging_faces_initialiser_is_the_default():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        initializer_range=0.02,
    )
    with spmd.meta_parameters():
        module = transformers.LlamaForCausalLM(config)
    model = FSDPv2(module, FLAT, auto_wrap_policy="LlamaDecoderLayer")
    found = values(materialize(model))
    weights = {n: v for n, v in found.items() if v.ndim == 2}
    assert len(weights) == 16
    for name, weight in weights.items():
        assert weight.std() == pytest.approx(0.02, rel=0.1), name
    assert all((v == 1).all() for v in found.values() if v.ndim == 1)


def test_an_initialiser_of_ones_own():
    def initialise(module):
        for parameter in module.parameters(recurse=False):
            nn.init.constant_(parameter, 0.5)

    model = materialize(planned(), init_fn=initialise)
    assert all((v == 0.5).all() for v in values(model).values())


def test_tensors_that_get_no_values():
    text = r"materialize: 14 tensors get no values: embed\.weight, .*give an init_fn"
    with pytest.raises(ValueError, match=text):
        materialize(planned(), init_fn=lambda module: None)


def test_values_that_are_computed():
    def initialise(module):
        for parameter in module.parameters(recurse=False):
            parameter.copy_(torch.sin(parameter))

    with pytest.raises(ValueError, match=r"embed\.weight, .*computed from other"):
        materialize(planned(), init_fn=initialise)


SCRIPT = """
import jax

jax.config.update("jax_num_cpu_devices", 8)
import torch

import spmd
from fsdpv2 import FSDPv2, materialize
from tests.fsdpv2.layers import FLAT, Stack, ids, loss_of

spmd.init(runtime="jax", cpu_devices=8)
for options in ({"remat": "full"}, {"scan_layers": True}):
    with spmd.meta_parameters():
        module = Stack()
    model = materialize(FSDPv2(module, FLAT, min_shard_elements=1, **options))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(batch):
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = spmd.compile_step(train, model=model, optimizer=optimizer)
    print(*[float(step(ids())) for _ in range(3)])
    found = model.state_dict()
    assert {v.device.type for v in found.values()} == {"cpu"}
    print(float(step(ids())))
"""


def test_on_jax_the_same_values_are_made_at_the_first_step(run_script):
    result = run_script(SCRIPT, env={"TF_CPP_MIN_LOG_LEVEL": "2"})
    assert result.rc == 0, result.stderr
    model = Stack()
    model.load_state_dict(values(materialize(planned())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    want = []
    for _ in range(4):
        loss = loss_of(model, ids())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        want.append(loss.item())
    found = [float(word) for word in result.stdout.split()]
    assert found == pytest.approx(want * 2, abs=5e-5)
