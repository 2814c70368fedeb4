"""Which matrices are split by columns and which by rows."""

from __future__ import annotations

import pytest
from torch import nn

from spmd import meta_parameters
from spmd._auto.model import Model, read_model
from spmd._auto.styles import Styled, styles
from tests.spmd.hf_models import CASES

LAYER = "model.layers.0"
OWN = "tp_plan of LlamaForCausalLM"


def built(name: str, **changes) -> nn.Module:
    with meta_parameters():
        return CASES[name].build(num_hidden_layers=1, **changes)


def of_layer(model: Model, layer: str) -> dict[str, str]:
    """Style by the name of the matrix in its layer."""
    found, _ = styles(model)
    start = f"{layer}."
    return {n.removeprefix(start): s.style for n, s in found.items() if start in n}


def test_the_models_own_plan():
    found, notes = styles(read_model(built("llama")))
    assert found[f"{LAYER}.mlp.up_proj"] == Styled("column", OWN)
    assert found[f"{LAYER}.mlp.down_proj"] == Styled("row", OWN)
    assert found["lm_head"].style == "column"
    assert {s.source for s in found.values()} == {OWN} and notes == ()


@pytest.mark.parametrize(
    ("word", "style"),
    [
        ("colwise_gather_output", "column"),
        ("packed_rowwise", "row"),
        ("replicate", "whole"),
    ],
)
def test_words_of_a_plan(word, style):
    model = built("llama")
    model._tp_plan = {"model.layers.*.mlp.up_proj": word}
    found, notes = styles(read_model(model))
    assert found[f"{LAYER}.mlp.up_proj"].style == style and notes == ()


def test_an_unknown_word_is_whole_and_told_once():
    model = built("llama")
    model._tp_plan = {
        "model.layers.*.mlp.up_proj": "diagonal",
        "model.layers.*.mlp.gate_proj": "diagonal",
    }
    found, notes = styles(read_model(model))
    assert found[f"{LAYER}.mlp.gate_proj"].style == "whole"
    assert notes == (
        f"{OWN}: the word 'diagonal' for {LAYER}.mlp.up_proj is not known here; such "
        f"matrices stay whole over the tensor axis",
    )


def test_nothing_is_guessed_in_a_layer_that_a_plan_speaks_of():
    model = built("llama")
    model._tp_plan = {"model.layers.*.mlp.up_proj": "colwise"}
    found, _ = styles(read_model(model))
    assert [n for n in found if n.startswith(LAYER)] == [f"{LAYER}.mlp.up_proj"]


def test_the_last_of_several_patterns_wins():
    """As in transformers, whose plans go from the class to the instance."""
    model = built("llama")
    model._tp_plan = {
        "model.layers.*.mlp.*": "replicate",
        "model.layers.*.mlp.up_proj": "colwise",
    }
    found, _ = styles(read_model(model))
    assert found[f"{LAYER}.mlp.up_proj"].style == "column"
    assert found[f"{LAYER}.mlp.down_proj"].style == "whole"


@pytest.mark.parametrize(
    ("name", "layer", "rows"),
    [
        ("opt", "model.decoder.layers.0", {"self_attn.out_proj", "fc2"}),
        ("gpt2", "transformer.h.0", {"attn.c_proj", "mlp.c_proj"}),
        (
            *("bert", "bert.encoder.layer.0"),
            {"attention.output.dense", "output.dense"},
        ),
        ("vit", "vit.layers.0", {"attention.o_proj", "mlp.fc2"}),
        (
            *("falcon", "transformer.h.0"),
            {"self_attention.dense", "mlp.dense_4h_to_h"},
        ),
    ],
)
def test_layers_without_a_plan_are_recognised(name, layer, rows):
    model = built(name)
    model._tp_plan = {}
    found = of_layer(read_model(model), layer)
    assert {n for n, style in found.items() if style == "row"} == rows
    assert set(found.values()) == {"column", "row"}
    assert len(found) == len(read_model(model).blocks[layer])


def layers(**linear: tuple[int, int]) -> Model:
    """Two layers of these matrices [in, out]; a dot in a name is written ``__``."""

    def layer() -> nn.Module:
        root = nn.Module()
        for name, (num_in, num_out) in linear.items():
            scope, _, leaf = name.rpartition("__")
            owner = root
            if scope:
                if scope not in root._modules:
                    root.add_module(scope, nn.Module())
                owner = root.get_submodule(scope)
            owner.add_module(leaf, nn.Linear(num_in, num_out))
        return root

    root = nn.Module()
    root.layers = nn.ModuleList([layer(), layer()])
    return read_model(root)


def test_of_matrices_in_a_row_the_second_takes_what_the_first_makes():
    assert of_layer(layers(up=(8, 32), down=(32, 8)), "layers.1") == {
        "up": "column",
        "down": "row",
    }


def test_gate_and_up_share_one_partner():
    found = of_layer(layers(gate=(8, 32), up=(8, 32), down=(32, 8)), "layers.0")
    assert found == {"gate": "column", "up": "column", "down": "row"}


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside attention"])
def test_of_square_matrices_the_last_is_the_row(beside):
    attention = {"attention__query": (8, 8), "attention__out": (8, 8)} if beside else {}
    found = of_layer(
        layers(**attention, gate=(8, 8), up=(8, 8), down=(8, 8)), "layers.0"
    )
    found = {n: style for n, style in found.items() if "attention" not in n}
    assert found == {"gate": "column", "up": "column", "down": "row"}


def test_beside_attention_what_takes_its_features_is_the_column():
    """Whatever the order, and a matrix of other features stays whole."""
    found = of_layer(
        layers(
            attention__query=(8, 8),
            attention__out=(8, 8),
            down=(32, 8),
            up=(8, 32),
            adapter_in=(16, 4),
            adapter_out=(4, 16),
            router=(8, 3),
        ),
        "layers.0",
    )
    assert found == {
        "attention.query": "column",
        "attention.out": "row",
        "up": "column",
        "down": "row",
    }


def test_the_source_names_the_layer_and_what_it_consists_of():
    found, _ = styles(read_model(built("opt")))
    sources = {s.source for s in found.values()}
    assert sources == {"recognised: OPTDecoderLayer (Linear)"}
