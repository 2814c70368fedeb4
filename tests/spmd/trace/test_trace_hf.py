"""Hugging Face models: every parameter is an input, every product has its place."""

import re

import numpy as np
import pytest
import torch
import transformers

import spmd
from fsdpv2 import FSDPv2
from spmd import CaptureError, Mesh, Plan
from tests.spmd.tracing import adamw, locations

MESH = Mesh({"fsdp": 8})
ROWS, SEQ, VOCAB, LAYERS = 8, 16, 64, 2
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_cache": False,
}
MODELS = {
    "llama": (transformers.LlamaConfig, {}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 8}),
    "gpt2": (
        transformers.GPT2Config,
        {
            "vocab_size": VOCAB,
            "n_embd": 32,
            "n_layer": LAYERS,
            "n_head": 4,
            "n_positions": 32,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "use_cache": False,
        },
    ),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {
            "head_dim": 8,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "mixtral": (
        transformers.MixtralConfig,
        {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3_moe": (
        transformers.Qwen3MoeConfig,
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "head_dim": 8,
        },
    ),
}


def config_of(kind, *, experts="batched_mm", **options):
    make, special = MODELS[kind]
    common = {} if kind == "gpt2" else SMALL
    config = make(**{**common, **special, **options})
    if "num_experts_per_tok" in special and experts is not None:
        config._experts_implementation = experts
    return config


def build(kind, where="meta", **options):
    torch.manual_seed(0)
    make = transformers.AutoModelForCausalLM.from_config
    if where == "cpu":
        return make(config_of(kind, **options))
    with spmd.meta_parameters():
        return make(config_of(kind, **options))


def tokens():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCAB, (ROWS, SEQ), generator=generator)
    return {"input_ids": ids, "labels": ids}


def traced(model, batch=None, **options):
    wrapped = FSDPv2(model, MESH, min_shard_elements=1)
    optimizer = adamw(wrapped)

    def step(batch):
        loss = wrapped(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    batch = tokens() if batch is None else batch
    return spmd.trace(step, batch, model=wrapped, optimizer=optimizer, **options)


@pytest.fixture(scope="module", params=MODELS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def program(kind):
    return traced(build(kind))


def names(program, role):
    return {v.name for v in program.inputs if v.role == role}


def test_inputs(kind, program):
    parameters = {n for n, _ in build(kind).named_parameters()}
    assert names(program, "parameter") == parameters
    assert names(program, "optimizer") == {
        f"optimizer.{key}[{name}]"
        for key in ("step", "exp_avg", "exp_avg_sq")
        for name in parameters
    }
    assert names(program, "input") == {"batch.input_ids", "batch.labels"}
    assert names(program, "rng") == ({"rng"} if kind == "gpt2" else set())
    split = [v for v in program.inputs if v.role == "parameter"]
    assert all("fsdp" in v.spec for v in split if max(v.shape) % 8 == 0)
    updated = {v.name for v in program.outputs if v.updates is not None}
    assert updated == parameters | names(program, "optimizer")
    donated = {v.name for v in program.inputs if v.donated_to is not None}
    assert donated == updated


def test_names_as_in_the_model(kind, program):
    if kind == "gpt2":
        assert "transformer.h.0.mlp.c_fc.weight" in names(program, "parameter")
        assert "lm_head.weight" not in names(program, "parameter")  # tied
    else:
        assert "model.layers.0.self_attn.q_proj.weight" in names(program, "parameter")


def test_buffers_are_kept_and_nothing_else_but_scalars(kind, program):
    kept = {n: a.size for n, a in program.constants.items()}
    tables = {n for n in kept if not n.startswith("constant.")}
    assert tables == names(program, "buffer")
    assert bool(tables) == (kind != "gpt2")
    assert {kept[n] for n in set(kept) - tables} == {1}


def test_every_product_has_its_place(kind, program):
    found = locations(program, "dot") + locations(program, "dot_general")
    assert len(found) >= 3 * 2 * LAYERS
    modules = dict(build(kind).named_modules())
    modeling = f"/transformers/models/{kind}/modeling_{kind}.py"
    for name, file, line in found:
        phase, module, _ = re.fullmatch(r"(\w+)/([\w.]+)/(\w+)", name).groups()
        assert phase in ("forward", "backward")
        assert module in modules
        assert file.endswith(modeling) and line > 0, (name, file)
    phases = [name.partition("/")[0] for name, _, _ in found]
    assert phases.count("backward") == 2 * phases.count("forward")
    if kind != "gpt2":
        projections = [n for n, _, _ in found if "layers.1.self_attn.q_proj/" in n]
        assert len(projections) == 3


def test_it_is_the_same_program_again(kind, program):
    assert traced(build(kind)) == program


@pytest.mark.parametrize("kind_", ["llama", "gpt2"])
def test_models_on_the_devices(kind_):
    assert traced(build(kind_, "cpu")) == traced(build(kind_))


@pytest.mark.parametrize(
    "kind_",
    [
        "llama",
        *(pytest.param(k, marks=pytest.mark.slow) for k in MODELS if k != "llama"),
    ],
)
def test_the_loss_is_that_of_the_model_on_the_cpu(kind_):
    program = traced(build(kind_).eval())
    model = build(kind_, "cpu").eval()
    with torch.no_grad():
        wanted = model(**tokens()).loss.item()
    state = dict(model.named_parameters())
    for value in program.inputs:
        if value.role == "optimizer":
            state[value.name] = np.zeros(value.shape, value.dtype)
    runner = program.runner("cpu")
    runner.put(state, partial=True)
    loss = runner.step(tokens(), learning_rate=0.01)["output"].item()
    assert loss == pytest.approx(wanted, abs=1e-5)
    assert runner.step(tokens())["output"].item() < loss


@pytest.mark.parametrize("kind_", ["mixtral", "qwen3_moe"])
def test_experts_that_run_on_the_host(kind_):
    model = build(kind_, experts=None)
    with pytest.raises(
        CaptureError,
        match=r"aten::histc at .*moe.py:\d+ .*_experts_implementation = 'batched_mm'",
    ):
        traced(model)


def test_masks_and_positions():
    batch = tokens()
    mask = torch.ones_like(batch["input_ids"])
    positions = torch.arange(SEQ).expand(ROWS, SEQ).clone()
    program = traced(
        build("llama"), {**batch, "attention_mask": mask, "position_ids": positions}
    )
    assert names(program, "input") == {
        f"batch.{n}" for n in ("input_ids", "labels", "attention_mask", "position_ids")
    }


def test_plans_beside_kept_buffers():
    mesh = Mesh({"fsdp": 4, "tensor": 2})
    model = build("llama", attn_implementation="eager")
    plan = Plan({"**.mlp.up_proj.weight": ("tensor", "fsdp"), "**.inv_freq": (None,)})
    with pytest.warns(UserWarning, match="match no pattern"):
        spmd.shard_module(model, mesh, plan)
    model = FSDPv2(model, mesh, min_shard_elements=1)
    program = spmd.trace(lambda b: model(**b).loss, tokens(), model=model)
    by_name = {v.name: v for v in program.inputs}
    assert by_name["model.layers.0.mlp.up_proj.weight"].spec == ("tensor", "fsdp")
    assert by_name["model.layers.0.mlp.gate_proj.weight"].spec == ("fsdp", None)
    assert by_name["model.rotary_emb.inv_freq"].spec == (None,)
