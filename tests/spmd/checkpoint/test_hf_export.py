"""Out to transformers' files and in again: names, order, config and every bit."""

import json
import os

import pytest
import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh, Plan
from spmd.checkpoint import CheckpointError, _hf_export, export_hf, from_hf
from spmd.checkpoint._team import Team
from tests.on_device import split_by
from tests.spmd.checkpoints import on_cpu, same

transformers = pytest.importorskip("transformers")
safe_open = pytest.importorskip("safetensors").safe_open

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CONFIGS = {
    "tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "fused": lambda: transformers.Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=24, num_experts=4, head_dim=8
    ),
}
MESH = Mesh({"fsdp": 4, "tensor": 2})

pytestmark = pytest.mark.filterwarnings("ignore:.*does not divide over")


def files(folder):
    """Tensors in a folder, by file and in order."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with safe_open(folder / name, framework="pt") as file:
                found |= {key: file.get_tensor(key) for key in file.offset_keys()}
    return found


@pytest.fixture(scope="module", params=list(CONFIGS))
def theirs(request, tmp_path_factory):
    """A folder that transformers wrote, its config, and the model's weights."""
    torch.manual_seed(0)
    config = CONFIGS[request.param]()
    model = transformers.AutoModelForCausalLM.from_config(config)
    folder = tmp_path_factory.mktemp(request.param) / "theirs"
    model.save_pretrained(folder, max_shard_size="40KB")
    return folder, config, on_cpu(model)


def meta(config):
    with spmd.meta_parameters():
        return transformers.AutoModelForCausalLM.from_config(config)


def test_there_and_back(theirs, tmp_path):
    folder, config, weights = theirs
    model = FSDPv2(meta(config), MESH, min_shard_elements=1)
    assert from_hf(folder, model) is model
    same(on_cpu(model), weights)
    assert {b.device.type for b in model.buffers()} == {"xla"}
    for parameter in model.parameters():
        known = spmd.get_sharding(parameter)
        assert split_by(parameter, known.mesh, known.spec)
    export_hf(tmp_path / "ours", model, max_file_bytes=40_000)
    same(files(tmp_path / "ours"), files(folder))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    same(on_cpu(again), weights)
    for name in ("config.json", "generation_config.json"):
        ours = json.loads((tmp_path / "ours" / name).read_text())
        assert ours == json.loads((folder / name).read_text())
    index = "model.safetensors.index.json"
    ours = json.loads((tmp_path / "ours" / index).read_text())
    assert ours["metadata"] == json.loads((folder / index).read_text())["metadata"]
    assert os.listdir(tmp_path) == ["ours"]


def test_onto_a_mesh_by_a_plan_and_onto_the_cpu(theirs):
    folder, config, weights = theirs
    plan = Plan({"model.layers.*.self_attn.q_proj.weight": ("fsdp", "tensor")})
    with pytest.warns(UserWarning, match="match no pattern"):
        model = from_hf(folder, meta(config), MESH, plan=plan)
    same(on_cpu(model), weights)
    weight = model.model.layers[0].self_attn.q_proj.weight
    assert split_by(weight, MESH, ("fsdp", "tensor"))
    assert spmd.get_sharding(model.lm_head.weight).spec == (None, None)
    plain = transformers.AutoModelForCausalLM.from_config(config)
    same(on_cpu(from_hf(folder, plain)), weights)


def test_a_trained_dtype_is_in_the_config(theirs, tmp_path):
    _, config, _ = theirs
    model = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
    export_hf(tmp_path / "a", model)
    assert (
        json.loads((tmp_path / "a" / "config.json").read_text())["dtype"] == "bfloat16"
    )
    assert os.path.exists(tmp_path / "a" / "model.safetensors")
    same(files(tmp_path / "a"), files(tmp_path / "a"))


def test_a_model_without_a_config_and_a_url(tmp_path):
    torch.manual_seed(0)
    model = spmd.to_device(nn.Sequential(nn.Linear(5, 70), nn.Linear(70, 3)))
    mesh = Mesh({"a": 8})
    for parameter in model.parameters():
        spmd.mark_sharding(parameter, mesh, ("a", None)[: parameter.ndim])
    url = f"memory://{tmp_path.name}/hf"
    export_hf(url, model, max_file_bytes=600)
    other = nn.Sequential(nn.Linear(5, 70), nn.Linear(70, 3))
    from_hf(
        url,
        other,
        Mesh({"a": 4, "b": 2}),
        plan=Plan({"*.weight": (None, "b"), "*.bias": ("a",)}),
    )
    same(on_cpu(other), on_cpu(model))
    export_hf(tmp_path / "a", other)
    assert os.listdir(tmp_path / "a") == ["model.safetensors"]


def test_what_does_not_fit(theirs):
    folder, config, _ = theirs
    more = {**config.to_dict(), "num_hidden_layers": 3, "vocab_size": 99}
    with pytest.raises(ValueError, match="does not fit the model") as caught:
        from_hf(folder, meta(type(config).from_dict(more)))
    text = str(caught.value)
    assert "missing from the checkpoint: model.layers.2.self_attn.q_proj.weight" in text
    assert "embed_tokens.weight is [101, 32] in the checkpoint, [99, 32]" in text


def test_near_names_are_shown(tmp_path):
    export_hf(tmp_path / "a", nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    other = nn.ModuleDict({"0": nn.Linear(2, 2), "l1": nn.Linear(2, 2)})
    with pytest.raises(ValueError, match=r"l1.weight \[2, 2\] \(near: 1.weight\)"):
        from_hf(tmp_path / "a", other)


def test_wrong_use(tmp_path, monkeypatch):
    model = nn.Linear(2, 2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(ValueError, match="has files in it; give another path"):
        export_hf(tmp_path / "full", model)
    with pytest.raises(CheckpointError, match="has no safetensors file; it has x"):
        from_hf(tmp_path / "full", model)
    with pytest.raises(ValueError, match="a plan needs a mesh"):
        from_hf(tmp_path / "full", model, plan=Plan({}))
    monkeypatch.setattr(_hf_export, "current_team", lambda: Team(0, 2))
    with pytest.raises(ValueError, match="this run has 2 processes of torch_xla"):
        export_hf(tmp_path / "a", model)


def test_a_full_disk(tmp_path, monkeypatch):
    def fails(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("spmd.checkpoint._folder.os.fsync", fails)
    with pytest.raises(
        CheckpointError, match=r"could not be written \(No space.*nothing is left"
    ):
        export_hf(tmp_path / "a", nn.Linear(2, 2))
    assert os.listdir(tmp_path) == []
