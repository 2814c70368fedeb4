"""What `auto_plan` decides, without a device."""

from __future__ import annotations

import io

import pytest
import torch
import transformers
from rich.console import Console
from torch import nn

import spmd
from spmd import Mesh, Plan
from spmd._adapt.rule import Adapted
from spmd._auto.plan import auto_plan
from tests.spmd.hf_models import CASES

MESH = Mesh({"fsdp": 2, "tensor": 4})
WHOLE, COLUMNS = ("fsdp", None, None), ("fsdp", None, "tensor")
SPLIT = ("fsdp", "tensor", None)


def resolved(name, mesh=MESH, *, changes=None, **options):
    config = CASES[name].make_config(**(changes or {}))
    config.architectures = [CASES[name].model]
    plan = auto_plan(config, mesh, min_shard_elements=1, **options)
    return plan.explain(console=Console(file=io.StringIO()))


def specs(found):
    return {row.name: row.spec for row in found.parameters}


def at(rows):
    return {row.name: row.spec for row in rows}


def test_llama_by_its_own_plan():
    found = resolved("llama")
    layer = "model.layers.1"
    got = specs(found)
    assert got[f"{layer}.self_attn.q_proj.weight"] == ("tensor", "fsdp")
    assert got[f"{layer}.self_attn.o_proj.weight"] == ("fsdp", "tensor")
    assert got[f"{layer}.mlp.down_proj.weight"] == ("fsdp", "tensor")
    assert got[f"{layer}.input_layernorm.weight"] == (None,)
    assert got["model.embed_tokens.weight"] == got["lm_head.weight"]
    outputs = at(found.outputs)
    assert outputs[f"{layer}.self_attn.k_proj"] == COLUMNS
    assert outputs[f"{layer}.self_attn.o_proj"] == outputs[layer] == WHOLE
    assert outputs["lm_head"] == COLUMNS
    assert at(found.inputs) == {
        f"model.layers.{i}.{name}": COLUMNS
        for i in range(2)
        for name in ("self_attn.o_proj", "mlp.down_proj")
    }
    assert found.uncovered == () and found.notes == ()
    (row,) = (r for r in found.parameters if r.name == f"{layer}.mlp.up_proj.weight")
    assert row.source == "tp_plan of LlamaForCausalLM"
    assert row.pattern == "model.layers.*.mlp.up_proj.weight"


def test_along_the_sequence_between_layers():
    outputs = at(resolved("llama", sequence_parallel=True).outputs)
    between = ("model.embed_tokens", "model.layers.0", "model.layers.0.mlp.down_proj")
    assert {outputs[name] for name in between} == {SPLIT}
    assert outputs["model.layers.0.mlp.up_proj"] == COLUMNS


def test_the_batch_over_all_data_axes():
    mesh = Mesh({"replica": 2, "fsdp": 2, "tensor": 2})
    outputs = at(resolved("llama", mesh).outputs)
    assert outputs["model.layers.0"] == (("replica", "fsdp"), None, None)


def test_axes_of_other_names():
    mesh = Mesh({"data": 2, "shard": 2, "tp": 2})
    found = resolved("llama", mesh, fsdp="shard", tensor="tp")
    assert specs(found)["model.layers.0.mlp.up_proj.weight"] == ("tp", "shard")
    assert at(found.outputs)["model.layers.0"] == (("data", "shard"), None, None)


def test_without_a_tensor_axis():
    found = resolved("gpt2", Mesh({"fsdp": 8}))
    got = specs(found)
    assert got["transformer.h.0.attn.c_attn.weight"] == (None, "fsdp")
    assert "tensor" not in {axis for spec in got.values() for axis in spec}
    assert found.inputs == ()


def test_without_an_fsdp_axis():
    found = resolved("llama", Mesh({"tensor": 4}))
    assert specs(found)["model.layers.0.mlp.up_proj.weight"] == ("tensor", None)
    assert at(found.outputs)["model.layers.0"] == (None, None, None)


def test_few_key_heads_are_made_from_repeated_weights():
    found = resolved("llama-few-kv")
    outputs = at(found.outputs)
    assert outputs["model.layers.0.self_attn.k_proj"] == COLUMNS
    assert specs(found)["model.layers.0.self_attn.k_proj.weight"] == (None, "fsdp")
    assert found.notes[0] == (
        "model.layers.*.self_attn.k_proj: 2 key and value heads do not divide over "
        "tensor=4, so every device of that axis holds their weights, and they are "
        "repeated to 4; sizes that split them: 1, 2"
    )
    plan = auto_plan(CASES["llama-few-kv"].make_config(), MESH)
    adapted = [a for part in plan.parts for a in part.adapted]
    assert adapted == [Adapted("model.layers.*.self_attn", "repeat_heads", 4)]


def test_few_key_heads_of_an_attention_that_is_not_known():
    config = transformers.GPTBigCodeConfig(
        vocab_size=128, n_embd=64, n_head=8, n_layer=1, multi_query=True
    )
    found = auto_plan(config, MESH).explain(console=Console(file=io.StringIO()))
    outputs = at(found.outputs)
    assert outputs["transformer.h.0.attn.c_attn.k"] == WHOLE
    assert any("device of that axis computes them all" in note for note in found.notes)


def test_weights_in_one_are_taken_apart():
    got = specs(resolved("gpt2"))
    for part in "qkv":
        assert got[f"transformer.h.0.attn.c_attn.{part}.weight"] == ("fsdp", "tensor")
        assert got[f"transformer.h.0.attn.c_attn.{part}.bias"] == ("tensor",)
    got = specs(resolved("phi3"))
    for name in ("self_attn.qkv_proj.k", "mlp.gate_up_proj.up"):
        assert got[f"model.layers.0.{name}.weight"] == ("tensor", "fsdp")
    got = specs(resolved("mixtral"))
    assert got["model.layers.0.mlp.experts.up_proj"] == (None, "tensor", "fsdp")


def test_experts_over_an_axis_of_their_own():
    mesh = Mesh({"fsdp": 2, "expert": 2, "tensor": 2})
    found = resolved("mixtral", mesh)
    assert specs(found)["model.layers.0.mlp.experts.down_proj"] == (
        *("expert", "fsdp", "tensor"),
    )
    assert at(found.outputs)["model.layers.0"][0] == ("fsdp", "expert")
    with pytest.raises(ValueError, match=r"mlp.experts: 4 experts do not divide"):
        resolved("mixtral", Mesh({"expert": 8}))


def test_groups_of_heads_split_as_they_are():
    found = resolved("falcon-groups")
    name = "transformer.h.0.self_attention.query_key_value.weight"
    assert specs(found)[name] == ("tensor", "fsdp")
    assert "one head after another, so it splits as is" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "column", "row", "source"),
    [
        ("opt", "layers.1.fc1", "layers.1.self_attn.out_proj", "OPTDecoderLayer"),
        (
            "bert",
            "layer.1.attention.self.key",
            "layer.1.output.dense",
            "BertLayer",
        ),
        ("vit", "layers.1.mlp.fc1", "layers.1.attention.o_proj", "ViTLayer"),
        (
            "falcon-heads",
            "h.1.mlp.dense_h_to_4h",
            "h.1.self_attention.dense",
            "FalconDecoderLayer",
        ),
    ],
)
def test_recognised_by_form(name, column, row, source):
    found = resolved(name)
    own = {r.name.removesuffix(".weight"): r for r in found.parameters}
    (first,) = (r for n, r in own.items() if n.endswith(column))
    (second,) = (r for n, r in own.items() if n.endswith(row))
    assert (first.spec, second.spec) == (("tensor", "fsdp"), ("fsdp", "tensor"))
    assert first.source.startswith(f"recognised: {source} (")
    assert found.uncovered == ()


def test_rows_in_opt_that_are_flattened_no_more():
    outputs = at(resolved("opt").outputs)
    assert outputs["model.decoder.layers.0.fc1"] == COLUMNS
    plan = auto_plan(CASES["opt"].make_config(), MESH)
    adapted = [a for part in plan.parts for a in part.adapted]
    assert adapted == [Adapted("model.decoder.layers.*", "unflatten")]


def test_experts_are_told_of_the_sequence():
    found = resolved("mixtral", sequence_parallel=True)
    assert at(found.inputs)["model.layers.0.mlp"] == SPLIT
    assert found.notes[-1] == (
        "model.layers.*.mlp.experts: beside pairs of gather and scatter, the gradient "
        "of the routing weights [tokens, experts] is added up over 'tensor' in backward"
    )
    assert "model.layers.0.mlp" not in at(resolved("mixtral").inputs)


@pytest.mark.parametrize("name", ["vit", "clip"])
def test_positions_that_do_not_divide(name):
    """They are padded, or not split."""
    config = CASES["vit"].make_config()
    if name == "clip":
        options = {"hidden_size": 64, "intermediate_size": 96, "image_size": 32}
        options |= {"num_attention_heads": 8, "patch_size": 8, "num_hidden_layers": 2}
        config = transformers.CLIPVisionConfig(**options)
    plan = auto_plan(config, MESH, sequence_parallel=True)
    found = plan.explain(console=Console(file=io.StringIO()))
    layers = {v for n, v in at(found.outputs).items() if n.endswith("layers.1")}
    assert layers == {SPLIT if name == "vit" else WHOLE}
    assert "17 positions do not divide over tensor=4" in "".join(found.notes)


def test_tied_tables_are_one():
    found = resolved("gpt2")
    names = [row.name for row in found.parameters]
    assert "transformer.wte.weight" in names and "lm_head.weight" not in names
    bert = specs(resolved("bert"))
    assert bert["cls.predictions.bias"] == ("tensor",)


def test_a_vocabulary_that_does_not_divide():
    found = resolved("llama", changes={"vocab_size": 126})
    assert found.notes[0] == (
        "model.embed_tokens: 126 rows of the vocabulary do not divide over tensor=4; "
        "XLA pads 2"
    )


def test_a_size_that_does_not_fit():
    changes = {"hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 90}
    with pytest.raises(ValueError, match="does not fit tensor=4") as error:
        resolved("llama", changes={**changes, "num_key_value_heads": 3})
    assert str(error.value).splitlines()[1:] == [
        "  model.layers.{0,1}.self_attn.q_proj: 6 heads",
        "  model.layers.{0,1}.mlp.gate_proj: 90 features",
        "  model.layers.{0,1}.mlp.up_proj: 90 features",
        "  model.layers.{0,1}.mlp.down_proj: 90 input features",
        "Sizes of 'tensor' that fit: 1, 2, 3, 6",
    ]


def test_a_large_model_from_its_config():
    config = transformers.LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    )
    mesh = Mesh({"replica": 8, "fsdp": 16, "tensor": 8})
    found = auto_plan(config, mesh).explain(console=Console(file=io.StringIO()))
    total = sum(row.num_elements for row in found.parameters)
    held = sum(row.num_shard_elements for row in found.parameters)
    assert total > 65e9 and held < 1.01 * total / 128


def test_a_pattern_of_ones_own_comes_first():
    config = CASES["gpt2"].make_config()
    own = Plan({"**.c_attn.weight": (None, None), "**.c_attn.bias": (None,)})
    plan = own | auto_plan(config, MESH)
    found = plan.explain(console=Console(file=io.StringIO()))
    got = {row.name: (row.spec, row.source) for row in found.parameters}
    name = "transformer.h.0.attn.c_attn.weight"
    assert got[name] == ((None, None), "user")
    assert not [n for n in got if ".c_attn.q." in n]


@pytest.mark.parametrize("name", ["phi3", "llama-few-kv", "mixtral"])
def test_it_is_written_and_read(name):
    plan = auto_plan(CASES[name].make_config(), MESH)
    assert Plan.from_yaml(plan.to_yaml()) == plan


def test_on_a_model_on_meta():
    with spmd.meta_parameters():
        model = CASES["phi3"].build()
    plan = auto_plan(model, MESH, min_shard_elements=1)
    names = {n for n, _ in model.named_parameters()}
    spmd.shard_module(model, MESH, plan)
    parameters = dict(model.named_parameters())
    assert "model.layers.0.mlp.gate_up_proj.gate.weight" in parameters
    assert all(spmd.get_sharding(p) is not None for p in parameters.values())
    assert {n for n in model.state_dict() if n in names} == names


def test_what_is_no_model_of_transformers():
    with pytest.raises(TypeError, match="Linear has no config, so it is no model"):
        auto_plan(nn.Linear(2, 2), MESH)
    with pytest.raises(TypeError, match=r"a model or a config .* is needed, got dict"):
        auto_plan({}, MESH)


def test_a_config_without_a_model():
    class Own(transformers.PretrainedConfig):
        model_type = "own"

    with pytest.raises(ValueError, match="no model of transformers belongs to Own"):
        auto_plan(Own(), MESH)


@pytest.mark.parametrize(
    ("mesh", "options", "match"),
    [
        (MESH, {"tensor": "tp"}, "tensor='tp', but .* has no such axis; its axes are"),
        (Mesh({"data": 8}), {}, "has no axis 'fsdp' and none 'tensor'; name the axes"),
        (Mesh({"fsdp": 8}), {"sequence_parallel": True}, "does not have; add it, or"),
    ],
    ids=["unknown", "none", "sequence"],
)
def test_axes_that_are_not_there(mesh, options, match):
    with pytest.raises(ValueError, match=match):
        auto_plan(CASES["llama"].make_config(), mesh, **options)


def test_an_unknown_word_in_a_plan_is_told():
    with spmd.meta_parameters():
        model = CASES["llama"].build()
    model._tp_plan = {**model.tp_plan, "model.layers.*.mlp.up_proj": "diagonal"}
    found = auto_plan(model, MESH).explain(console=Console(file=io.StringIO()))
    assert (
        "the word 'diagonal' for model.layers.0.mlp.up_proj is not known"
        in (found.notes[-1])
    )


def test_a_fused_weight_of_unknown_order_stays_whole():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.head_dim = 8
            self.qkv = nn.Linear(64, 192)
            self.out = nn.Linear(64, 64)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()

    model = nn.Module()
    model.config = transformers.PretrainedConfig()
    model.blocks = nn.ModuleList(Block() for _ in range(2))
    found = auto_plan(model, MESH).explain(console=Console(file=io.StringIO()))
    assert "in an order that is not known of Attention" in found.notes[0]
    assert specs(found)["blocks.0.attention.qkv.weight"] == (None, None)


def test_explain_prints_sources_and_notes():
    text = io.StringIO()
    console = Console(file=text, width=100)
    plan = auto_plan(CASES["llama-few-kv"].make_config(), MESH)
    plan.explain(console=console)
    assert "tp_plan of LlamaForCausalLM -> (tensor, fsdp)" in text.getvalue()
    assert "module inputs" in text.getvalue()
    assert "Notes\n- model.layers.*.self_attn.k_proj: 2 key" in text.getvalue()


def test_explain_without_a_model():
    with pytest.raises(TypeError, match="a mesh and the shapes of the parameters"):
        Plan({}).explain()


def test_given_to_the_wrapper():
    from fsdpv2 import FSDPv2

    torch.manual_seed(0)
    model = CASES["llama"].build(num_hidden_layers=1)
    mesh = Mesh({"fsdp": 2, "tensor": 4})
    wrapped = FSDPv2(model, mesh, plan=auto_plan(model, mesh, min_shard_elements=1))
    got = spmd.get_sharding(wrapped.get_parameter("lm_head.weight"))
    assert got.spec == ("tensor", "fsdp")
