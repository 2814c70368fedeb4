"""Experts that compute every token give what transformers' give."""

import copy
import re

import pytest
import torch
import transformers
from torch import nn
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

import spmd
from spmd import Mesh
from spmd._experts.experts import DenseExperts, rows_of, split_experts
from tests.on_device import sync

HIDDEN, INSIDE, NUM, TOKENS = 16, 24, 4, 10
SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": 1, "num_experts_per_tok": 2}
KINDS = {
    "mixtral": (
        MixtralExperts,
        transformers.MixtralConfig,
        {"intermediate_size": INSIDE, "num_local_experts": NUM},
    ),
    "qwen3_moe": (
        Qwen3MoeExperts,
        transformers.Qwen3MoeConfig,
        {"moe_intermediate_size": INSIDE, "num_experts": NUM},
    ),
    "gpt_oss": (
        GptOssExperts,
        transformers.GptOssConfig,
        {"intermediate_size": INSIDE, "num_local_experts": NUM},
    ),
    "nemotron_h": (
        NemotronHExperts,
        transformers.NemotronHConfig,
        {"moe_intermediate_size": INSIDE, "n_routed_experts": NUM},
    ),
}


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        experts, config, more = KINDS[kind]
        sizes = SIZES if kind != "nemotron_h" else {"hidden_size": HIDDEN}
        config = config(**sizes, **more)
        config._experts_implementation = "eager"
        self.experts = experts(config)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(std=0.2)

    def forward(self, *args):
        return self.experts(*args)


def routed(device="cpu"):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator)
    scores = torch.rand(TOKENS, NUM, generator=generator)
    weights, indices = scores.topk(2, -1)
    return [hidden.to(device), indices.to(device), weights.to(device)]


def outcome(model, args):
    hidden, indices, weights = args
    hidden, weights = hidden.requires_grad_(), weights.requires_grad_()
    out = model(hidden, indices, weights)
    out.square().sum().backward()
    return [out.detach(), hidden.grad, weights.grad]


def wholes(model):
    """Gradients under the names of before."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            other.get_parameter(name).copy_(parameter.grad)
    return other.state_dict()


@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind, device):
    twin, model = Model(kind), Model(kind)
    split_experts(model, ["experts"])
    if device == "xla":
        spmd.to_device(model)
    got, wanted = outcome(model, routed(device)), outcome(twin, routed())
    sync()
    for a, b in zip(got, wanted, strict=True):
        assert torch.allclose(a.cpu(), b, atol=2e-5 * b.abs().max().item())
    if device == "cpu":
        grads = {n: p.grad for n, p in twin.named_parameters()}
        found = wholes(model)
        assert found.keys() == grads.keys()
        for name, grad in grads.items():
            assert torch.allclose(
                found[name], grad, atol=2e-5 * grad.abs().max().item()
            )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_before_and_after(kind):
    mesh = Mesh({"fsdp": 2, "expert": 2, "tensor": 2})
    model = Model(kind)
    before = rows_of(model.experts, mesh)
    split_experts(model, ["experts"])
    assert rows_of(model.experts, mesh) == before
    shapes = {n: tuple(p.shape) for n, p in model.experts.named_parameters()}
    assert shapes == dict(before.shapes)


@pytest.mark.parametrize("kind", KINDS)
def test_state_in_the_names_of_before(kind):
    twin, model = Model(kind), Model(kind)
    split_experts(model, ["experts"])
    assert model.state_dict().keys() == twin.state_dict().keys()
    with torch.no_grad():
        twin.experts.down_proj.normal_()
        for parameter in twin.parameters():
            parameter.mul_(2)
    model.load_state_dict(twin.state_dict())
    for name, value in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_norm_after_each_expert():
    """As Muse Spark's: the norm of an expert's result, before it counts."""
    model = Model("mixtral")
    model.experts.has_post_expert_norm = True
    model.experts.post_expert_norm = nn.RMSNorm(HIDDEN)
    hidden, indices, weights = routed()
    wanted = torch.zeros_like(hidden)
    for token in range(TOKENS):
        for index, weight in zip(indices[token], weights[token], strict=True):
            gate, up = (model.experts.gate_up_proj[index] @ hidden[token]).chunk(2)
            inner = model.experts.act_fn(gate) * up
            each = model.experts.down_proj[index] @ inner
            wanted[token] += weight * model.experts.post_expert_norm(each)
    split_experts(model, ["experts"])
    assert torch.allclose(model(hidden, indices, weights), wanted, atol=1e-5)


def test_half_precision():
    model = Model("mixtral").bfloat16()
    split_experts(model, ["experts"])
    hidden, indices, weights = routed()
    found = model(hidden.bfloat16(), indices, weights)
    assert found.dtype == torch.bfloat16
    wanted = Model("mixtral")(hidden, indices, weights)
    assert torch.allclose(found.float(), wanted, atol=0.05 * wanted.abs().max().item())


def test_again_and_on_meta():
    with spmd.meta_parameters():
        model = Model("mixtral")
    split_experts(model, ["experts"])
    first = model.experts
    assert isinstance(first, DenseExperts)
    assert first.gate_proj.shape == (NUM, INSIDE, HIDDEN)
    split_experts(model, ["experts"])
    assert model.experts is first
    assert "dense MixtralExperts" in repr(model)


def test_copies_compute_with_their_own():
    model = Model("mixtral")
    split_experts(model, ["experts"])
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.experts.down_proj.zero_()
    assert other(*routed()).abs().sum() == 0 < model(*routed()).abs().sum()


def test_an_optimizer_of_before():
    model = Model("mixtral")
    optimizer = torch.optim.SGD(model.parameters())
    split_experts(model, ["experts"])
    with pytest.raises(
        ValueError,
        match=r"SGD holds experts\.gate_up_proj .*: the model now has gate_pr",
    ):
        optimizer.step()


def refused(model, match):
    before = model.experts
    with pytest.raises(ValueError, match=match):
        split_experts(model, ["experts"])
    assert model.experts is before


def test_no_experts():
    model = Model("mixtral")
    model.experts = nn.Linear(4, 4)
    refused(model, r"experts \(Linear\) holds no experts in the form of transformers 5")
    with pytest.raises(ValueError, match="no experts: gate_up_proj"):
        rows_of(model.experts, Mesh({"expert": 8}))


def test_hooks_and_buffers():
    model = Model("mixtral")
    model.experts.register_forward_hook(lambda *_: None)
    refused(model, "has buffers or hooks; split it before they are added")


def test_tied():
    model = Model("mixtral")
    model.other = model.experts
    refused(model, re.escape("shares a parameter with other.gate_up_proj; untie them"))


def test_annotated():
    with spmd.meta_parameters():
        model = Model("mixtral")
    weight = model.experts.gate_up_proj
    spmd.mark_sharding(weight, Mesh({"fsdp": 8}), (None, None, None))
    refused(model, "its gate_up_proj .* is annotated already")
