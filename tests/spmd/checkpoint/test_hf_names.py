"""Names of weights in files and in models, as transformers has them."""

import pytest
import torch
from torch import nn

from fsdpv2 import FSDPv2
from spmd import Mesh
from spmd.checkpoint._hf_names import tied_targets, to_files, to_model, unwrapped

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 11,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def build(config):
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.fixture(scope="module")
def experts():
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=8, num_experts=3, head_dim=8
    )
    return build(config)


def test_unwrapped_finds_the_model_in_any_wrapper():
    inner = nn.Sequential(nn.Linear(8, 8))
    assert unwrapped(inner) is inner
    assert unwrapped(torch.compile(inner)) is inner
    assert unwrapped(nn.DataParallel(torch.compile(inner))) is inner
    wrapped = FSDPv2(inner, Mesh({"fsdp": 8}), min_shard_elements=1)
    assert unwrapped(wrapped) is unwrapped(unwrapped(wrapped))
    assert not isinstance(unwrapped(wrapped), FSDPv2)


def test_a_model_that_transformers_does_not_know_keeps_its_names():
    model = nn.Linear(2, 2)
    for groups in (to_files(model, ["a", "b"]), to_model(model, ["a", "b"])):
        assert [(g.names, g.convert, g.renamed) for g in groups] == [
            (("a",), None, "a"),
            (("b",), None, "b"),
        ]
    assert tied_targets(model) == set()


def test_fused_weights_are_taken_apart_and_put_together(experts, tmp_path):
    """Against the files that transformers writes."""
    weights = dict(experts.state_dict())
    experts.save_pretrained(tmp_path)
    load_file = pytest.importorskip("safetensors.torch").load_file
    theirs = load_file(tmp_path / "model.safetensors")
    ours = {}
    for group in to_files(experts, weights):
        held = {name: weights[name] for name in group.names}
        if group.convert is None:
            ours[group.renamed] = held[group.names[0]]
        else:
            ours |= group.convert(held)
    assert len(theirs) > len(weights)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    back = {}
    for group in to_model(experts, ours):
        held = {name: ours[name] for name in group.names}
        if group.convert is None:
            back[group.renamed] = held[group.names[0]]
        else:
            back |= group.convert(held)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_tied_weights_are_left_out():
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=True)
    assert tied_targets(build(config)) == {"lm_head.weight"}
