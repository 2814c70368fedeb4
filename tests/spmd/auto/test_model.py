"""What `auto_plan` looks at in a model."""

from __future__ import annotations

import pytest
import transformers
from torch import nn

from spmd import meta_parameters
from spmd._auto.model import Matrix, Model, build_on_meta, read_model
from tests.spmd.hf_models import CASES


def built(name: str, **changes) -> Model:
    with meta_parameters():
        return read_model(CASES[name].build(**changes))


def test_linear_layers_and_conv1d_are_matrices():
    up = built("llama").matrices["model.layers.1.mlp.up_proj"]
    assert (up.num_in, up.num_out, up.dim_out) == (64, 96, 0)
    assert (up.leaf, up.parent) == ("up_proj", "model.layers.1.mlp")
    up = built("gpt2").matrices["transformer.h.1.mlp.c_fc"]
    assert (up.num_in, up.num_out, up.dim_out) == (64, 256, 1)


def test_a_name_without_a_parent():
    one = Matrix("lm_head", nn.Linear(2, 2), 2, 2, 0)
    assert (one.leaf, one.parent) == ("lm_head", "")


def test_blocks_are_the_repeated_layers_with_their_matrices():
    blocks = built("opt").blocks
    assert list(blocks) == ["model.decoder.layers.0", "model.decoder.layers.1"]
    own = blocks["model.decoder.layers.1"]
    assert {n.rpartition(".")[2] for n in own} == {
        *("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
    }
    assert all(n.startswith("model.decoder.layers.1.") for n in own)


def test_ten_layers_do_not_take_each_others_matrices():
    """Layer 1 is no prefix of layer 10."""
    blocks = built("llama", num_hidden_layers=11).blocks
    assert len(blocks["model.layers.1"]) == len(blocks["model.layers.10"]) == 7


def test_only_outermost_lists_are_layers():
    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))

    root = nn.Module()
    root.layers = nn.ModuleList(
        nn.ModuleDict({"experts": nn.ModuleList([mlp(), mlp()])}) for _ in range(2)
    )
    blocks = read_model(root).blocks
    assert list(blocks) == ["layers.0", "layers.1"]
    assert len(blocks["layers.1"]) == 4


def test_one_matrix_is_no_layer():
    root = nn.Module()
    root.heads = nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(2))
    assert read_model(root).blocks == {}


@pytest.mark.parametrize(
    ("name", "table", "head"),
    [
        ("llama", "model.embed_tokens", "lm_head"),
        ("gpt2", "transformer.wte", "lm_head"),
        ("bert", "bert.embeddings.word_embeddings", "cls.predictions.decoder"),
        ("vit", None, None),
    ],
)
def test_tables(name, table, head):
    found = built(name)
    assert (found.table, found.head) == (table, head)
    assert found.kind == CASES[name].model


def test_a_module_without_the_methods_of_transformers():
    found = read_model(nn.Linear(2, 2))
    assert (found.table, found.head) == (None, None)
    assert list(found.matrices) == [""] and found.blocks == {}


@pytest.mark.parametrize(
    ("name", "changes", "kind"),
    [
        ("llama", {}, "LlamaForCausalLM"),
        ("bert", {}, "BertForMaskedLM"),
        ("bert", {"is_decoder": True}, "BertLMHeadModel"),
        ("vit", {}, "ViTForImageClassification"),
    ],
)
def test_the_class_that_a_config_is_for(name, changes, kind):
    config = CASES[name].make_config(num_hidden_layers=1, **changes)
    model = build_on_meta(config)
    assert type(model).__name__ == kind
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_the_class_that_a_config_names_comes_first():
    config = CASES["llama"].make_config(num_hidden_layers=1)
    config.architectures = ["OfNobody", "LlamaForSequenceClassification"]
    assert type(build_on_meta(config)).__name__ == "LlamaForSequenceClassification"


def test_a_config_without_a_head_of_its_own():
    config = transformers.CLIPVisionConfig(num_hidden_layers=1)
    assert type(build_on_meta(config)).__name__ == "CLIPVisionModel"


def test_a_config_without_a_model():
    class Own(transformers.PretrainedConfig):
        model_type = "own"

    with pytest.raises(ValueError, match="no model of transformers belongs to Own;"):
        build_on_meta(Own())
