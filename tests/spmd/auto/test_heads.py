"""How many pieces a matrix may be split into."""

from __future__ import annotations

import pytest
import transformers
from torch import nn

from spmd import meta_parameters
from spmd._auto.heads import Layout, Piece, attention_scope, is_projection, layout_of
from spmd._auto.model import Model, read_model
from tests.spmd.hf_models import CASES

LAYER = "model.layers.0"
BIG_CODE = "transformer.h.0.attn.c_attn"


def built(name: str, **changes) -> Model:
    with meta_parameters():
        return read_model(CASES[name].build(**changes))


def layout(model: Model, name: str) -> Layout | None:
    return layout_of(model, model.matrices[name])


def features(num: int, name: str = "") -> Piece:
    return Piece(name, num, num, "features")


def heads(num: int, size: int = 8, name: str = "") -> Piece:
    return Piece(name, num * size, num, "heads")


def shared(num: int, size: int = 8, name: str = "") -> Piece:
    return Piece(name, num * size, num, "key and value heads", is_shared=True)


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("h.0.attn.c_attn", "h.0.attn"),
        ("h.0.attn.inner.self.q", "h.0.attn"),
        ("h.0.SelfAttention.q", "h.0.SelfAttention"),
        ("cross_attention.self_attn.q_proj", "cross_attention.self_attn"),
        ("h.0.mlp.up", None),
        ("attention", None),  # a matrix of this name is in none
    ],
)
def test_the_attention_around_a_matrix(name, scope):
    assert attention_scope(name) == scope


@pytest.mark.parametrize(
    ("name", "matrix", "wanted"),
    [
        ("llama", f"{LAYER}.self_attn.k_proj", True),
        ("llama", f"{LAYER}.self_attn.o_proj", False),
        ("llama", f"{LAYER}.mlp.up_proj", False),
        ("gpt2", "transformer.h.0.attn.c_attn", True),
        ("bert", "bert.encoder.layer.0.attention.self.value", True),
        ("bert", "bert.encoder.layer.0.attention.output.dense", False),
    ],
)
def test_projections(name, matrix, wanted):
    assert is_projection(built(name).matrices[matrix]) == wanted


def test_a_layer_of_the_mlp_called_as_a_projection_is_none():
    root = nn.ModuleDict({"mlp": nn.ModuleDict({"key": nn.Linear(2, 2)})})
    assert not is_projection(read_model(root).matrices["mlp.key"])


@pytest.mark.parametrize(
    ("name", "matrix", "pieces"),
    [
        ("llama", f"{LAYER}.mlp.up_proj", [features(96)]),
        ("llama", f"{LAYER}.self_attn.q_proj", [heads(8)]),
        ("llama", f"{LAYER}.self_attn.k_proj", [shared(4)]),
        ("llama-few-kv", f"{LAYER}.self_attn.v_proj", [shared(2)]),
        ("bert", "bert.encoder.layer.0.attention.self.query", [heads(8)]),
        (
            *("phi3", f"{LAYER}.mlp.gate_up_proj"),
            [features(96, "gate"), features(96, "up")],
        ),
        (
            *("phi3", f"{LAYER}.self_attn.qkv_proj"),
            [heads(8, name="q"), shared(4, name="k"), shared(4, name="v")],
        ),
        (
            *("gpt2", "transformer.h.0.attn.c_attn"),
            [heads(8, name="q"), shared(8, name="k"), shared(8, name="v")],
        ),
        (
            *("falcon", "transformer.h.0.self_attention.query_key_value"),
            [heads(8, name="q"), shared(1, name="k"), shared(1, name="v")],
        ),
    ],
)
def test_what_output_features_are(name, matrix, pieces):
    assert layout(built(name), matrix) == Layout(tuple(pieces))


@pytest.mark.parametrize(
    ("name", "num_features", "num_groups"),
    [("falcon-groups", 128, 4), ("falcon-heads", 192, 8)],
)
def test_groups_of_heads_in_turn(name, num_features, num_groups):
    """4 groups of 2 queries, a key and a value; 8 of one each."""
    found = layout(built(name), "transformer.h.0.self_attention.query_key_value")
    assert found is not None
    assert found.pieces == (Piece("", num_features, num_groups, "groups of heads"),)
    assert found.remark.endswith("one head after another, so it splits as is")


@pytest.mark.parametrize(
    ("multi_query", "pieces"),
    [
        (True, (heads(8, name="q"), shared(1, name="k"), shared(1, name="v"))),
        (False, (Piece("", 192, 8, "groups of heads"),)),
    ],
)
def test_big_code(multi_query, pieces):
    config = transformers.GPTBigCodeConfig(
        vocab_size=128, n_embd=64, n_head=8, n_layer=2, multi_query=multi_query
    )
    with meta_parameters():
        model = read_model(transformers.GPTBigCodeForCausalLM(config))
    found = layout(model, BIG_CODE)
    assert found is not None and found.pieces == pieces


class Attention(nn.Module):
    """Of no model of transformers; the size of its heads is given or not."""

    def __init__(self, name: str, num_out: int, **sizes: int):
        super().__init__()
        self.add_module(name, nn.Linear(64, num_out))
        vars(self).update(sizes)


def own(name: str, num_out: int, *, config=None, **sizes: int) -> Layout | None:
    root = nn.ModuleDict({"attention": Attention(name, num_out, **sizes)})
    root.config = config
    return layout(read_model(root), f"attention.{name}")


def test_an_order_that_is_not_known():
    assert own("qkv", 192, head_dim=8) is None


def test_the_attentions_own_size_of_heads_comes_before_the_configs():
    config = transformers.PretrainedConfig(head_dim=16, hidden_size=64)
    assert own("q_proj", 64, config=config, head_dim=8) == Layout((heads(8),))
    assert own("q_proj", 64, config=config) == Layout((heads(4, 16),))


def test_the_size_of_heads_from_their_number():
    config = transformers.PretrainedConfig(hidden_size=64, num_attention_heads=4)
    assert own("q_proj", 64, config=config) == Layout((heads(4, 16),))


@pytest.mark.parametrize("sizes", [{}, {"head_dim": 48}], ids=["none", "other"])
def test_without_a_size_of_heads_that_divides_features_are_single(sizes):
    assert own("q_proj", 64, **sizes) == Layout((features(64),))
