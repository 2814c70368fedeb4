"""Specs for what was recognised, and the sizes that they need."""

from __future__ import annotations

import pytest
import transformers
from torch import nn

from spmd import Mesh, meta_parameters
from spmd._auto.layout import choose_axes
from spmd._auto.model import read_model
from spmd._auto.place import place
from spmd._auto.rows import Rows
from spmd._auto.styles import Styled, styles
from tests.spmd.hf_models import CASES

MESH = Mesh({"fsdp": 2, "tensor": 4})
LAYER = "model.layers.0"
WHOLE, COLUMNS, SPLIT = (
    ("fsdp", None, None),
    ("fsdp", None, "tensor"),
    ("fsdp", "tensor", None),
)


def placed(name: str, mesh: Mesh = MESH, *, sequence: bool = False, **changes) -> Rows:
    with meta_parameters():
        model = CASES[name].build(**{"num_hidden_layers": 1, **changes})
    return of_model(model, mesh, sequence=sequence)


def of_model(
    root: nn.Module,
    mesh: Mesh = MESH,
    *,
    sequence: bool = False,
    chosen: dict[str, Styled] | None = None,
) -> Rows:
    axes = choose_axes(
        mesh,
        fsdp="fsdp",
        tensor="tensor",
        expert="expert",
        sequence_parallel=sequence,
        min_shard_elements=1,
    )
    model = read_model(root)
    return place(model, styles(model)[0] if chosen is None else chosen, axes)


def specs(said) -> dict[str, object]:
    return {name: one.what for name, one in said.items()}


def notes(rows: Rows) -> list[str]:
    return [note.what for note in rows.notes]


def test_columns_and_their_bias_are_split_and_rows_keep_theirs():
    got = specs(placed("opt").parameters)
    layer = "model.decoder.layers.0"
    assert got[f"{layer}.fc1.weight"] == ("tensor", "fsdp")
    assert got[f"{layer}.fc1.bias"] == ("tensor",)
    assert got[f"{layer}.fc2.weight"] == ("fsdp", "tensor")
    assert got[f"{layer}.fc2.bias"] == (None,)


def test_conv1d_has_its_output_features_last():
    got = specs(placed("gpt2").parameters)
    layer = "transformer.h.0"
    assert got[f"{layer}.mlp.c_fc.weight"] == ("fsdp", "tensor")
    assert got[f"{layer}.mlp.c_proj.weight"] == ("tensor", "fsdp")
    assert got[f"{layer}.mlp.c_proj.bias"] == (None,)
    assert got[f"{layer}.attn.c_attn.q.bias"] == ("tensor",)


@pytest.mark.parametrize("sequence", [False, True])
def test_activations(sequence):
    rows = placed("llama", sequence=sequence)
    outputs, between = specs(rows.outputs), SPLIT if sequence else WHOLE
    assert outputs[f"{LAYER}.mlp.up_proj"] == COLUMNS
    assert outputs[f"{LAYER}.mlp.down_proj"] == outputs[LAYER] == between
    assert outputs["model.embed_tokens"] == between
    assert outputs["lm_head"] == COLUMNS
    assert specs(rows.inputs)[f"{LAYER}.mlp.down_proj"] == COLUMNS


def test_without_a_tensor_axis_only_the_batch_is_split():
    rows = placed("llama", Mesh({"fsdp": 8}))
    assert rows.parameters == {} and rows.inputs == {}
    assert specs(rows.outputs) == dict.fromkeys([LAYER, "model.embed_tokens"], WHOLE)


def test_fused_weights_are_in_parts_that_have_specs():
    rows = placed("phi3")
    fused = specs(rows.fused)[f"{LAYER}.self_attn.qkv_proj"]
    assert (fused.parts, fused.dim) == ((("q", 64), ("k", 32), ("v", 32)), 0)
    assert specs(rows.fused)[f"{LAYER}.mlp.gate_up_proj"].num_features == 192
    got = specs(rows.outputs)
    assert f"{LAYER}.self_attn.qkv_proj" not in got
    assert got[f"{LAYER}.self_attn.qkv_proj.k"] == COLUMNS


@pytest.mark.parametrize("bias", [False, True])
def test_few_key_and_value_heads(bias):
    """Their weights are whole over tensor, and what is made of them is not."""
    rows = placed("llama", num_key_value_heads=2, attention_bias=bias)
    name = f"{LAYER}.self_attn.k_proj"
    got = specs(rows.parameters)
    assert got[f"{name}.weight"] == (None, "fsdp")
    assert got.get(f"{name}.bias", "none") == ((None,) if bias else "none")
    assert specs(rows.outputs)[name] == COLUMNS
    assert specs(rows.adapted)[f"{LAYER}.self_attn"].size == 4
    assert notes(rows) == [
        f"model.layers.*.self_attn.{n}_proj: 2 key and value heads do not divide over "
        f"tensor=4, so every device of that axis holds their weights, and they are "
        f"repeated to 4; sizes that split them: 1, 2"
        for n in "kv"
    ]


def test_few_heads_of_a_layer_that_is_not_known_are_computed_by_all():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.head_dim = 8
            self.q_proj, self.k_proj = nn.Linear(64, 64), nn.Linear(64, 16)
            self.out = nn.Linear(64, 64)

    root = nn.Module()
    root.layers = nn.ModuleList(nn.ModuleDict({"attn": Attention()}) for _ in "ab")
    rows = of_model(root)
    name = "layers.0.attn.k_proj"
    assert specs(rows.parameters)[f"{name}.weight"] == ("tensor", "fsdp")
    assert specs(rows.parameters)[f"{name}.bias"] == (None,)
    assert specs(rows.outputs)[name] == WHOLE and rows.adapted == {}
    assert "every device of that axis computes them all" in notes(rows)[0]


@pytest.mark.parametrize(
    ("name", "changes", "lines", "sizes"),
    [
        (
            "llama",
            {"intermediate_size": 90, "hidden_size": 96, "num_attention_heads": 12},
            [
                "model.layers.0.mlp.gate_proj: 90 features",
                "model.layers.0.mlp.up_proj: 90 features",
                "model.layers.0.mlp.down_proj: 90 input features",
            ],
            "1, 2, 3, 6",  # of 12 heads and 90 features; 4 key heads are repeated
        ),
        (
            "phi3",
            {"intermediate_size": 90, "num_hidden_layers": 3},
            [
                "model.layers.{0..2}.mlp.gate_up_proj.gate: 90 features",
                "model.layers.{0..2}.mlp.gate_up_proj.up: 90 features",
                "model.layers.{0..2}.mlp.down_proj: 90 input features",
            ],
            "1, 2",
        ),
        (
            "gpt2",
            {"n_embd": 48, "n_head": 6},
            ["transformer.h.0.attn.c_attn.q: 6 heads"],
            "1, 2, 3, 6",
        ),
        (
            "falcon-groups",
            {"num_kv_heads": 2},
            [
                "transformer.h.0.self_attention.query_key_value: 2 groups of heads",
            ],
            "1, 2",
        ),
    ],
    ids=["inner", "fused", "heads", "groups"],
)
def test_sizes_that_do_not_fit(name, changes, lines, sizes):
    with pytest.raises(ValueError, match="does not fit tensor=4") as error:
        placed(name, **changes)
    kind = CASES[name].model
    assert str(error.value).splitlines() == [
        f"auto_plan: {kind} does not fit tensor=4, which does not divide",
        *(f"  {line}" for line in lines),
        f"Sizes of 'tensor' that fit: {sizes}",
    ]


@pytest.mark.parametrize("ways", [1, 2])
def test_sizes_that_are_said_to_fit_do(ways):
    rows = placed("llama", Mesh({"fsdp": 2, "tensor": ways}), intermediate_size=90)
    assert specs(rows.outputs)[LAYER] == WHOLE


def test_a_vocabulary_that_does_not_divide_is_padded_and_told():
    """Of table and matrix of logits, each where it is its own."""
    rows = placed("llama", vocab_size=126)
    got = specs(rows.parameters)
    assert got["model.embed_tokens.weight"] == got["lm_head.weight"]
    assert got["lm_head.weight"] == ("tensor", "fsdp")
    assert notes(rows) == [
        f"{name}: 126 rows of the vocabulary do not divide over tensor=4; XLA pads 2"
        for name in ("model.embed_tokens", "lm_head")
    ]
    assert notes(placed("llama", vocab_size=124)) == []


def test_the_bias_of_logits_is_split_with_them():
    got = specs(placed("bert").parameters)
    assert got["cls.predictions.decoder.weight"] == ("tensor", "fsdp")
    assert got["cls.predictions.decoder.bias"] == ("tensor",)


def test_the_plan_of_the_logits_names_their_source():
    rows = placed("llama")
    assert rows.parameters["lm_head.weight"].source == "tp_plan of LlamaForCausalLM"
    assert placed("opt").outputs["lm_head"].source == "vocabulary"


def test_experts_of_a_layer_and_what_is_said_of_them():
    mesh = Mesh({"fsdp": 2, "expert": 2, "tensor": 2})
    rows = placed("mixtral", mesh, sequence=True)
    name = f"{LAYER}.mlp.experts"
    assert specs(rows.parameters)[f"{name}.up_proj"] == ("expert", "tensor", "fsdp")
    held = dict(specs(rows.experts)[name].held)
    assert held["gate_proj"] == (4, 96, 64)
    between = (("fsdp", "expert"), "tensor", None)
    assert specs(rows.inputs)[f"{LAYER}.mlp"] == between
    assert notes(rows)[-1].startswith("model.layers.*.mlp.experts: beside pairs of")
    assert notes(placed("mixtral", mesh)) == []


def test_experts_that_do_not_divide():
    with pytest.raises(ValueError, match=f"{LAYER}.mlp.experts: 4 experts do not div"):
        placed("mixtral", Mesh({"expert": 8}))


def test_inner_features_of_experts_that_do_not_divide_stay_whole():
    rows = placed("mixtral", intermediate_size=90)
    name = f"{LAYER}.mlp.experts"
    assert specs(rows.parameters)[f"{name}.up_proj"] == (None, None, "fsdp")
    assert notes(rows) == [
        "model.layers.*.mlp.experts: 90 intermediate features do not divide over "
        "'tensor' of size 4: experts stay whole over it"
    ]


def test_positions_that_are_padded_are_split():
    rows = placed("vit", sequence=True)
    assert specs(rows.outputs)["vit.layers.0"] == SPLIT
    assert specs(rows.outputs)["vit.embeddings.dropout"] == WHOLE
    assert list(rows.adapted) == ["vit"]


def test_positions_that_cannot_be_padded_are_split_nowhere():
    config = transformers.CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        image_size=32,
        patch_size=8,
    )
    with meta_parameters():
        rows = of_model(transformers.CLIPVisionModel(config), sequence=True)
    assert "layers.1" in {n.partition("encoder.")[2] for n in rows.outputs}
    assert SPLIT not in specs(rows.outputs).values()


def test_a_matrix_that_is_whole_has_no_spec():
    with meta_parameters():
        model = CASES["llama"].build(num_hidden_layers=1)
    name = f"{LAYER}.mlp.up_proj"
    rows = of_model(model, chosen={name: Styled("whole", "own")})
    assert name not in rows.outputs and f"{name}.weight" not in rows.parameters
