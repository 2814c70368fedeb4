"""Checkpoints have the names and shapes that weights have as a whole."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

import spmd
from spmd import Mesh
from spmd._experts.experts import split_experts
from spmd._fused.fused import split_fused
from spmd._fused.rule import Fused
from spmd._program.value import STACKED
from spmd._stacked.stack import stack_layers
from spmd.checkpoint import export_hf, from_hf, load, save
from spmd.checkpoint._parts import holdings_of, saved_aliases, saved_names
from spmd.checkpoint._source import source_at
from tests.on_device import sync
from tests.spmd.checkpoints import on_cpu, same, with_moments

MESHES = [Mesh({"fsdp": 2, "tensor": 4}), Mesh({"fsdp": 4, "tensor": 2})]
FUSED = {"layer.qkv": Fused("layer.qkv", (("q", 16), ("k", 8), ("v", 8)))}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Module()
        self.layer.qkv = nn.Linear(8, 32)
        self.out = nn.Linear(32, 8)

    def forward(self, x):
        return self.out(self.layer.qkv(x))


def whole(seed=0):
    torch.manual_seed(seed)
    return Model()


def apart(seed=0, mesh=None, model=None):
    """A model in pieces, split over a mesh if there is one."""
    model = whole(seed) if model is None else model
    split_fused(model, FUSED)
    if mesh is not None:
        if not any(p.device.type == "meta" for p in model.parameters()):
            spmd.to_device(model)
        for name, parameter in model.named_parameters():
            spec = ("tensor", "fsdp")[: parameter.ndim]
            spmd.mark_sharding(parameter, mesh, spec, name=name)
    return model


def whole_moments(model, optimizer):
    """The optimizer's state by the names of wholes, put together."""
    found = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            found.setdefault((name, key), value.detach().cpu().clone())
    for name, holding in holdings_of(model).items():
        (part,) = holding.parts
        for key in ("exp_avg", "exp_avg_sq", "step"):
            value = found.pop((name, key))
            if value.ndim:
                before = found.get((part.saved, key))
                value = value if before is None else torch.cat([before, value])
            found[part.saved, key] = value
    return {f"{name}.{key}": value for (name, key), value in found.items()}


def test_pieces():
    found = holdings_of(apart(), "model")
    assert list(found)[::2][:2] == [
        "model.layer.qkv.q.weight",
        "model.layer.qkv.k.weight",
    ]
    holding = found["model.layer.qkv.v.weight"]
    (part,) = holding.parts
    assert (holding.shape, holding.stack, part.row) == ((8, 8), "", None)
    assert (part.saved, part.saved_shape) == ("model.layer.qkv.weight", (32, 8))
    assert part.moved((2, 3)) == (26, 3) and not part.is_first
    assert holdings_of(whole()) == {}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 32, bias=False)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("shift", torch.ones(8))
        self.register_buffer("scratch", torch.ones(8), persistent=False)

    def forward(self, x):
        return self.qkv(x)[..., :8] * self.scale + self.shift


def in_layers():
    """Pieces in layers that are stacked."""
    layers = nn.ModuleList(Layer() for _ in range(2))
    model = nn.Module()
    model.layers = layers
    parts = (("q", 16), ("k", 8), ("v", 8))
    split_fused(
        model, {f"layers.{i}.qkv": Fused("layers.*.qkv", parts) for i in range(2)}
    )
    stack_layers(layers, name="layers")
    return model


def test_layers_first_then_pieces():
    found = holdings_of(in_layers(), "extra.x")
    inside = f"extra.x.layers.{STACKED}"
    assert {k.removeprefix(f"{inside}.") for k in found} == {
        *(f"qkv.{n}.weight" for n in "qkv"),
        "scale",
        "shift",
    }
    v = found[f"{inside}.qkv.v.weight"]
    assert (v.shape, v.stack) == ((2, 8, 8), "extra.x.layers")
    assert [(p.saved, p.saved_shape, p.start, p.row) for p in v.parts] == [
        (f"extra.x.layers.{i}.qkv.weight", (32, 8), (24, 0), i) for i in range(2)
    ]
    scale = found[f"{inside}.scale"]
    assert [(p.saved_shape, p.start) for p in scale.parts] == [((), ())] * 2


def test_names_are_in_the_order_of_the_unwrapped_model():
    model = in_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert [set(group) for group in saved_names(model, optimizer)] == [
        {f"layers.{i}.{n}" for i in range(2) for n in ("qkv.weight", "scale")}
    ]
    plain = nn.Module()
    plain.layers = nn.ModuleList(Layer() for _ in range(2))
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    assert saved_names(model, optimizer) == saved_names(plain, other)


def test_further_names_of_tied_tensors():
    holdings = holdings_of(in_layers())
    one, two = f"layers.{STACKED}.qkv.q.weight", f"layers.{STACKED}.scale"
    assert saved_aliases({"a": "b", one: two}, holdings) == {
        "a": "b",
        "layers.0.qkv.weight": "layers.0.scale",
        "layers.1.qkv.weight": "layers.1.scale",
    }


def test_a_checkpoint_has_no_pieces(tmp_path):
    model = apart(mesh=MESHES[0])
    optimizer = with_moments(model)
    sync()
    save(tmp_path / "a", model, optimizer)
    kinds = source_at(tmp_path / "a").kinds
    assert not any(".q." in key for key in kinds)
    assert kinds["model.layer.qkv.weight"][1] == (32, 8)
    assert kinds["optimizer.layer.qkv.bias.exp_avg"][1] == (32,)
    assert kinds["optimizer.layer.qkv.weight.step"][1] == ()
    assert saved_names(model, optimizer) == [
        ["layer.qkv.weight", "layer.qkv.bias", "out.weight", "out.bias"]
    ]


FORMS = {
    "whole": lambda: whole(1),
    "apart": lambda: apart(1),
    "another_mesh": lambda: apart(1, MESHES[1]),
}


@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("of", ["whole", "apart", "mesh"])
def test_model_and_optimizer(tmp_path, of, to):
    mesh = MESHES[0] if of == "mesh" else None
    model = whole() if of == "whole" else apart(mesh=mesh)
    optimizer = with_moments(model)
    sync()
    save(tmp_path / "a", model, optimizer, step=3)
    other = FORMS[to]()
    restored = torch.optim.AdamW(other.parameters(), foreach=False)
    assert load(tmp_path / "a", other, restored).step == 3
    same(on_cpu(other), on_cpu(model))
    same(whole_moments(other, restored), whole_moments(model, optimizer))


def test_onto_meta(tmp_path):
    save(tmp_path / "a", whole())
    with spmd.meta_parameters():
        model = Model()
    apart(mesh=MESHES[0], model=model)
    load(tmp_path / "a", model)
    same(on_cpu(model), on_cpu(whole()))
    assert model.layer.qkv.q.weight.device.type == "xla"


def test_a_file_of_torch_save(tmp_path):
    torch.save(whole().state_dict(), tmp_path / "a.pt")
    model = apart(1)
    load(tmp_path / "a.pt", model)
    same(on_cpu(model), on_cpu(whole()))


def test_modules_that_are_saved_besides(tmp_path):
    model, average = apart(), apart(1)
    save(tmp_path / "a", model, extra={"average": average})
    assert "extra.average.layer.qkv.weight" in source_at(tmp_path / "a").kinds
    restored = apart(2)
    load(tmp_path / "a", apart(3), extra={"average": restored})
    same(on_cpu(restored), on_cpu(average))


def test_another_shape_and_missing(tmp_path):
    other = whole()
    other.layer.qkv = nn.Linear(8, 40)
    save(tmp_path / "a", other)
    with pytest.raises(
        ValueError, match=r"of another shape: model\.layer\.qkv\.weight is \[40, 8\]"
    ):
        load(tmp_path / "a", apart())
    del other.layer.qkv
    save(tmp_path / "b", other)
    with pytest.raises(
        ValueError, match=r"missing from the checkpoint: model\.layer\.qkv\.weight"
    ):
        load(tmp_path / "b", apart())


def test_values_that_are_no_tensors(tmp_path):
    model = apart()
    optimizer = with_moments(model)
    for parameter in model.parameters():
        optimizer.state[parameter]["count"] = 7
    save(tmp_path / "a", model, optimizer)
    other = apart(1)
    restored = torch.optim.AdamW(other.parameters())
    load(tmp_path / "a", other, restored)
    assert restored.state[other.layer.qkv.k.weight]["count"] == 7


@pytest.mark.parametrize("of", ["whole", "apart"])
def test_state_that_does_not_go_number_by_number(tmp_path, of):
    """As Adafactor's means of rows and columns."""
    model, other = whole(), apart(1)
    if of == "apart":
        model, other = apart(), whole(1)
    optimizer = with_moments(model)
    for parameter in model.parameters():
        optimizer.state[parameter]["columns"] = torch.zeros(parameter.shape[-1:])
    for name in ("bias", "q.bias", "k.bias", "v.bias"):
        for parameter in [p for n, p in model.named_parameters() if n.endswith(name)]:
            optimizer.state[parameter].pop("columns", None)
    save(tmp_path / "a", model, optimizer)
    with pytest.raises(ValueError, match=r"columns.* does not go number by number"):
        load(tmp_path / "a", other, torch.optim.AdamW(other.parameters()))


SMALL = {"vocab_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
GPT2 = {"n_embd": 16, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}


def gpt2(seed, *, split=True):
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SMALL, **GPT2))
    if split:
        sizes = tuple((name, 16) for name in "qkv")
        fused = Fused("transformer.h.*.attn.c_attn", sizes, dim=1)
        split_fused(model, {"transformer.h.0.attn.c_attn": fused})
    return model


def mixtral(seed, *, split=True):
    torch.manual_seed(seed)
    config = transformers.MixtralConfig(
        **SMALL,
        hidden_size=16,
        intermediate_size=24,
        num_key_value_heads=4,
        num_local_experts=2,
    )
    model = transformers.MixtralForCausalLM(config)
    if split:
        split_experts(model, ["model.layers.0.mlp.experts"])
    return model


@pytest.mark.parametrize("build", [gpt2, mixtral])
def test_hugging_face_files(tmp_path, build):
    """The same files as of the model as a whole, and back."""
    model, plain = build(0), build(0, split=False)
    export_hf(tmp_path / "ours", model)
    plain.save_pretrained(tmp_path / "theirs")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    same(dict(sorted(ours.items())), dict(sorted(theirs.items())))
    restored = from_hf(tmp_path / "theirs", build(1))
    same(on_cpu(restored), on_cpu(plain))
    assert json.loads((tmp_path / "ours" / "config.json").read_text())


def test_hugging_face_files_of_shards(tmp_path):
    model = gpt2(0)
    spmd.to_device(model)
    attention = model.transformer.h[0].attn.c_attn
    for name, parameter in attention.named_parameters():
        spec = ("fsdp", "tensor")[-parameter.ndim :]
        spmd.mark_sharding(parameter, MESHES[0], spec, name=name)
    sync()
    export_hf(tmp_path / "ours", model)
    other = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours")
    same(on_cpu(other), on_cpu(gpt2(0, split=False)))
