"""Attention that repeats the weights of its key and value heads gives the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spmd._adapt.adapt import adapt
from spmd._adapt.heads import repeat_heads, repeatable
from spmd._adapt.rule import Adapted
from spmd._fused.fused import split_fused
from spmd._fused.rule import Fused
from tests.spmd.adapted import check_adapted
from tests.spmd.hf_models import CASES

FEW = {"num_key_value_heads": 2, "num_hidden_layers": 1}
ATTENTION = "model.layers.0.self_attn"


def built(name, **changes):
    return CASES[name].build(**{"num_hidden_layers": 1, **changes})


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma3"])
def test_layers_of_their_own(name, attention):
    model = built(name, **FEW)
    model.set_attn_implementation(attention)
    found = {ATTENTION: Adapted("", "repeat_heads", 4)}
    own = check_adapted(model, CASES[name].batch(), found)
    keys = own.get_submodule(ATTENTION).k_proj(torch.zeros(1, 3, 64).double())
    assert keys.shape == (1, 3, 4 * 8)


def test_a_bias_is_repeated_too():
    model = built("llama", **FEW, attention_bias=True)
    found = {ATTENTION: Adapted("", "repeat_heads", 8)}
    check_adapted(model, CASES["llama"].batch(), found)


def test_heads_that_are_more_than_devices():
    """Six over an axis of four are twelve."""
    more = {"num_attention_heads": 12, "num_key_value_heads": 6, "hidden_size": 96}
    model = built("llama", **more)
    found = {ATTENTION: Adapted("", "repeat_heads", 12)}
    check_adapted(model, CASES["llama"].batch(), found)


def test_parts_of_one_weight():
    model = built("phi3", **FEW).double()
    parts = (("q", 64), ("k", 16), ("v", 16))
    split_fused(model, {f"{ATTENTION}.qkv_proj": Fused("", parts)})
    check_adapted(
        model, CASES["phi3"].batch(), {ATTENTION: Adapted("", "repeat_heads", 4)}
    )


def test_falcons_one_head():
    model = built("falcon").double()
    name = "transformer.h.0.self_attention"
    parts = (("q", 64), ("k", 8), ("v", 8))
    split_fused(model, {f"{name}.query_key_value": Fused("", parts)})
    check_adapted(
        model, CASES["falcon"].batch(), {name: Adapted("", "repeat_heads", 4)}
    )


def test_which_it_knows():
    assert repeatable(built("llama").get_submodule(ATTENTION))
    assert repeatable(built("phi3").get_submodule(ATTENTION))
    one, groups = built("falcon"), built("falcon-groups")
    assert repeatable(one.get_submodule("transformer.h.0.self_attention"))
    assert not repeatable(groups.get_submodule("transformer.h.0.self_attention"))
    assert not repeatable(built("gpt2").get_submodule("transformer.h.0.attn"))
    assert not repeatable(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("num", "match"),
    [
        (3, "attn: 2 key and value heads cannot be repeated to 3; a multiple is"),
        (6, "attn: 8 query heads do not divide over 6 key and value heads"),
    ],
)
def test_numbers_that_do_not_fit(num, match):
    attention = built("llama", **FEW).get_submodule(ATTENTION)
    with pytest.raises(ValueError, match=match):
        repeat_heads(attention, num, name="attn")


def test_a_weight_in_one_is_left_alone():
    with pytest.raises(ValueError, match="Phi3Attention has no key and value heads"):
        adapt(built("phi3"), {ATTENTION: Adapted("", "repeat_heads", 4)})
