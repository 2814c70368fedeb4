"""A checkpoint does not know that equal layers hold their tensors stacked."""

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh, checkpoint
from spmd._program.value import STACKED
from spmd.checkpoint import load, save
from spmd.checkpoint._parts import holdings_of, saved_names
from spmd.checkpoint._source import source_at
from tests.on_device import sync
from tests.spmd.checkpoints import on_cpu, same, with_moments

FLAT, COPIES = Mesh({"fsdp": 8}), Mesh({"replica": 2, "fsdp": 4})
WIDTH, LAYERS, VOCAB = 16, 3, 24

pytestmark = pytest.mark.filterwarnings("ignore:.*does not divide over")


class Layer(nn.Module):
    """Uneven, with a parameter of one number, buffers of both kinds, and a tie."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 13)
        self.down = nn.Linear(13, WIDTH, bias=False)
        self.again = nn.Linear(13, WIDTH, bias=False)
        self.again.weight = self.down.weight
        self.scale = nn.Parameter(torch.randn(()))
        self.register_buffer("shift", torch.randn(WIDTH))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x):
        y = self.up(x).relu()
        return x + self.down(y) * self.scale + self.again(y) + self.shift


class Model(nn.Module):
    """Embedding and head are tied."""

    def __init__(self, num_layers=LAYERS):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(num_layers))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def plain(seed=0, mesh=None):
    torch.manual_seed(seed)
    return Model()


def apart(seed=0, mesh=FLAT):
    return FSDPv2(plain(seed), mesh, min_shard_elements=1)


def stacked(seed=0, mesh=FLAT):
    return FSDPv2(plain(seed), mesh, min_shard_elements=1, scan_layers=True)


def on_meta(build):
    with spmd.meta_parameters():
        return build()


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05, foreach=False)


def state_of(model, optimizer):
    """The optimizer's state under the names of the unwrapped model."""
    holdings, found = holdings_of(model), {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            value = value.detach().cpu().clone()
            if name not in holdings:
                found[f"{name}.{key}"] = value
                continue
            for part in holdings[name].parts:
                single = key == "step"
                found[f"{part.saved}.{key}"] = value if single else value[part.row]
    return dict(sorted(found.items()))


BATCHES = torch.randint(VOCAB, (6, 8, 4), generator=torch.Generator().manual_seed(1))


class Training:
    """A model, its optimizer and their step."""

    def __init__(self, model, *, runtime=None):
        self.model, self.optimizer = model, adam(model)

        def step(ids):
            logits = self.model(ids).float()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss

        self.both = self.model, self.optimizer
        self.step = spmd.compile_step(
            step, model=model, optimizer=self.optimizer, runtime=runtime
        )

    def go(self, first, last):
        """Losses of steps."""
        mesh = self.model.mesh
        batches = [spmd.shard_batch(b, mesh) for b in BATCHES[first:last]]
        return [self.step(batch).item() for batch in batches]


def test_what_is_written(tmp_path):
    model, whole = stacked(), plain()
    optimizer, twin = with_moments(model), with_moments(whole)
    sync()
    save(tmp_path / "a", model, optimizer)
    save(tmp_path / "b", whole, twin)
    ours, theirs = source_at(tmp_path / "a"), source_at(tmp_path / "b")
    assert ours.kinds == theirs.kinds
    assert ours.manifest.aliases == theirs.manifest.aliases
    assert ours.manifest.aliases["model.layers.1.again.weight"]
    assert saved_names(model, optimizer) == saved_names(whole, twin)
    groups = [source.object("optimizer")["groups"] for source in (ours, theirs)]
    assert groups[0] == groups[1]
    assert checkpoint.verify(tmp_path / "a") == []
    for key, value in on_cpu(model).items():
        assert torch.equal(ours.whole(f"model.{key}"), value), key


BUILDS = {"plain": plain, "apart": apart, "stacked": stacked}


@pytest.mark.parametrize("to", BUILDS)
@pytest.mark.parametrize("of", BUILDS)
def test_model_and_optimizer(tmp_path, of, to):
    model = BUILDS[of](0, FLAT)
    optimizer = with_moments(model)
    if of != "plain":
        sync()
    save(tmp_path / "a", model, optimizer, step=3)
    other = BUILDS[to](1, COPIES)
    restored = adam(other)
    assert load(tmp_path / "a", other, restored).step == 3
    same(on_cpu(other), on_cpu(model))
    same(state_of(other, restored), state_of(model, optimizer))
    if to == "stacked":
        up = other.get_parameter(f"layers.{STACKED}.up.weight")
        assert spmd.get_sharding(up).spec == (None, None, "fsdp")
        moment = restored.state[up]["exp_avg"]
        assert spmd.get_sharding(moment) == spmd.get_sharding(up)


@pytest.mark.parametrize("runtime", ["torch_xla", "jax"])
def test_losses_go_on_as_without_a_stop(tmp_path, runtime):
    run = Training(stacked(), runtime=runtime)
    run.go(0, 3)
    save(tmp_path / "a", *run.both, asynchronous=True)
    losses = run.go(3, 6)
    for again in (Training(stacked(1), runtime=runtime), run):
        load(tmp_path / "a", *again.both)
        assert again.go(3, 6) == losses
    other = Training(apart(2), runtime=runtime)
    load(tmp_path / "a", *other.both)
    assert other.go(3, 6) == pytest.approx(losses, rel=1e-5)
    load(tmp_path / "a", *other.both)
    save(tmp_path / "b", *other.both)
    load(tmp_path / "b", *run.both)
    assert run.go(3, 6) == losses


@pytest.mark.parametrize("build", [apart, stacked])
def test_onto_meta(tmp_path, build):
    save(tmp_path / "a", build(0))
    model = on_meta(stacked)
    load(tmp_path / "a", model)
    same(on_cpu(model), on_cpu(plain(0)))
    assert {p.device.type for p in model.parameters()} == {"xla"}


def test_files_of_torch_save(tmp_path):
    torch.save(plain().state_dict(), tmp_path / "a.pt")
    model = stacked(1)
    load(tmp_path / "a.pt", model)
    same(on_cpu(model), on_cpu(plain()))


def test_modules_that_are_saved_besides(tmp_path):
    save(tmp_path / "a", stacked(), extra={"average": stacked(1)})
    average = plain(2)
    load(tmp_path / "a", apart(3), extra={"average": average})
    same(on_cpu(average), on_cpu(plain(1)))
    average = stacked(2)
    load(tmp_path / "a", apart(3), extra={"average": average})
    same(on_cpu(average), on_cpu(plain(1)))


def test_all_forms_that_there_are(tmp_path):
    save(tmp_path / "a", stacked())
    want = on_cpu(plain())
    checkpoint.convert(tmp_path / "a", tmp_path / "b.pt")
    held = torch.load(tmp_path / "b.pt")["model"]
    aliases = {k for k in want if "again" in k} | {"head.weight"}
    assert held.keys() == want.keys() - aliases
    checkpoint.convert(tmp_path / "a", tmp_path / "c", to="safetensors")
    model = stacked(1)
    checkpoint.from_hf(tmp_path / "c", model)
    same(on_cpu(model), want)
    checkpoint.convert(tmp_path / "c", tmp_path / "d")
    model = stacked(1)
    load(tmp_path / "d", model)
    same(on_cpu(model), want)


def test_dtypes_of_the_checkpoint(tmp_path):
    other = plain()
    other.layers[1].bfloat16()
    save(tmp_path / "a", other)
    model = stacked(1)
    load(tmp_path / "a", model, assign=True)
    up = model.get_parameter(f"layers.{STACKED}.up.weight")
    assert up.dtype == torch.float32  # the widest
    other.bfloat16()
    save(tmp_path / "b", other)
    load(tmp_path / "b", model, assign=True)
    up = model.get_parameter(f"layers.{STACKED}.up.weight")
    assert up.dtype == torch.bfloat16
    same(on_cpu(model), on_cpu(other))


def test_what_does_not_fit_is_named_as_it_is_saved(tmp_path):
    other = plain()
    other.layers[1].up = nn.Linear(WIDTH, 12)
    save(tmp_path / "a", other)
    with pytest.raises(ValueError, match=r"model\.layers\.1\.up\.weight is \[12, 16\]"):
        load(tmp_path / "a", stacked())
    save(tmp_path / "b", Model(num_layers=2))
    with pytest.raises(ValueError, match=r"missing.*: model\.layers\.2\.scale \[\]"):
        load(tmp_path / "b", stacked())
    save(tmp_path / "c", Model(num_layers=4))
    with pytest.raises(ValueError, match=r"not in the model: model\.layers\.3\.scale"):
        load(tmp_path / "c", stacked())


@pytest.mark.parametrize("runtime", ["torch_xla", "jax"])
def test_layers_that_are_missing_keep_what_they_have(tmp_path, runtime):
    other = Model()
    other.layers[1] = nn.Identity()
    save(tmp_path / "a", other)
    run = Training(stacked(1), runtime=runtime)
    run.go(0, 1)
    save(tmp_path / "b", run.model)  # it stays in jax's arrays
    found = load(tmp_path / "a", run.model, strict=False)
    assert "model.layers.1.up.weight" in found.missing
    assert "model.layers.2.up.weight" not in found.missing
    theirs, before = other.state_dict(), source_at(tmp_path / "b")
    for key, value in on_cpu(run.model).items():
        want = theirs[key] if key in theirs else before.whole(f"model.{key}")
        assert torch.equal(value, want), key


def test_missing_layers_of_a_model_on_meta(tmp_path):
    save(tmp_path / "a", Model(num_layers=2))
    model = on_meta(stacked)
    with pytest.raises(ValueError, match=r"no model\.layers\.2\.scale.*on meta"):
        load(tmp_path / "a", model, strict=False)


def test_numbers_that_differ_between_layers(tmp_path):
    model = plain()
    optimizer = with_moments(model)
    optimizer.state[model.layers[1].up.weight]["step"] += 4
    save(tmp_path / "a", model, optimizer)
    other = stacked(1)
    before = on_cpu(other)
    with pytest.raises(ValueError, match=r"0\.up\.weight\.step 1\.0 and .*step 5\.0"):
        load(tmp_path / "a", other, adam(other))
    same(on_cpu(other), before)


def test_state_of_some_layers_only(tmp_path):
    model = plain()
    optimizer = with_moments(model)
    del optimizer.state[model.layers[1].up.weight]
    save(tmp_path / "a", model, optimizer)
    other = stacked(1)
    with pytest.raises(ValueError, match=r"0\.up\.weight\.step.* does not go number"):
        load(tmp_path / "a", other, adam(other))


def test_values_that_are_no_tensors(tmp_path):
    model = stacked()
    optimizer = with_moments(model)
    for parameter in model.parameters():
        optimizer.state[parameter]["count"] = 7
    sync()
    save(tmp_path / "a", model, optimizer)
    other = plain(1)
    restored = adam(other)
    load(tmp_path / "a", other, restored)
    assert restored.state[other.layers[2].up.bias]["count"] == 7
    again = stacked(1)
    second = adam(again)
    load(tmp_path / "a", again, second)
    up = again.get_parameter(f"layers.{STACKED}.up.bias")
    assert second.state[up]["count"] == 7
    restored.state[other.layers[2].up.bias]["count"] = 8
    save(tmp_path / "b", other, restored)
    with pytest.raises(ValueError, match=r"other optimizer state of layers\.2\.up\.bi"):
        load(tmp_path / "b", again, second)


@pytest.mark.parametrize("of", ["plain", "stacked"])
def test_state_that_does_not_go_number_by_number(tmp_path, of):
    build = {"plain": plain, "stacked": stacked}
    model, other = build.pop(of)(0), build.popitem()[1](1)
    optimizer = with_moments(model)
    for parameter in model.parameters():
        optimizer.state[parameter]["columns"] = torch.zeros((2, *parameter.shape[-1:]))
    save(tmp_path / "a", model, optimizer)
    with pytest.raises(ValueError, match=r"columns.* does not go number by number"):
        load(tmp_path / "a", other, adam(other))
    again = plain(1) if of == "plain" else stacked(1)
    load(tmp_path / "a", again, adam(again))


SMALL = {"vocab_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
HF_MESHES = [Mesh({"fsdp": 2, "tensor": 4}), Mesh({"fsdp": 4, "tensor": 2})]


def gpt2():
    options = {"n_embd": 16, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SMALL, **options))


def mixtral():
    config = transformers.MixtralConfig(
        **SMALL,
        hidden_size=16,
        intermediate_size=24,
        num_key_value_heads=4,
        num_local_experts=4,
    )
    return transformers.MixtralForCausalLM(config)


def planned(build, seed, mesh):
    """Fused weights and experts in pieces, and those of all layers stacked."""
    torch.manual_seed(seed)
    model = build()
    plan = spmd.auto_plan(model, mesh, min_shard_elements=1)
    model = FSDPv2(model, mesh, plan=plan, min_shard_elements=1, scan_layers=True)
    holdings = holdings_of(model).values()
    assert any(len(h.parts) == 2 and not h.parts[1].is_first for h in holdings)
    return model


def seeded(build, seed):
    torch.manual_seed(seed)
    return build()


@pytest.mark.parametrize("build", [gpt2, mixtral])
def test_pieces_in_layers(tmp_path, build):
    model, whole = planned(build, 0, HF_MESHES[0]), seeded(build, 0)
    optimizer, twin = with_moments(model), with_moments(whole)
    sync()
    save(tmp_path / "a", model, optimizer)
    save(tmp_path / "b", whole, twin)
    ours, theirs = source_at(tmp_path / "a"), source_at(tmp_path / "b")
    assert ours.kinds == theirs.kinds
    assert saved_names(model, optimizer) == saved_names(whole, twin)
    other = planned(build, 1, HF_MESHES[1])
    restored = adam(other)
    load(tmp_path / "a", other, restored)
    same(on_cpu(other), on_cpu(model))
    save(tmp_path / "c", other, restored)
    plain = seeded(build, 2)
    second = adam(plain)
    load(tmp_path / "c", plain, second)
    same(on_cpu(plain), on_cpu(model))
    again = source_at(tmp_path / "c")
    for key in ours.kinds:
        assert torch.equal(again.whole(key), ours.whole(key)), key
    for name, parameter in plain.named_parameters():
        for key, value in second.state[parameter].items():
            assert torch.equal(value, ours.whole(f"optimizer.{name}.{key}")), name


@pytest.mark.parametrize("build", [gpt2, mixtral])
def test_hugging_face_files(tmp_path, build):
    """The same files as of the model as a whole, and back."""
    model, whole = planned(build, 0, HF_MESHES[0]), seeded(build, 0)
    checkpoint.export_hf(tmp_path / "ours", model)
    whole.save_pretrained(tmp_path / "theirs")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    same(dict(sorted(ours.items())), dict(sorted(theirs.items())))
    restored = checkpoint.from_hf(tmp_path / "theirs", planned(build, 1, HF_MESHES[1]))
    same(on_cpu(restored), on_cpu(whole))
    with spmd.meta_parameters():
        hollow = planned(build, 1, HF_MESHES[1])
    checkpoint.from_hf(tmp_path / "theirs", hollow)
    same(on_cpu(hollow), on_cpu(whole))


def test_hugging_face_files_without_a_layer(tmp_path):
    whole = seeded(gpt2, 0)
    checkpoint.export_hf(tmp_path / "a", whole)
    file = tmp_path / "a" / "model.safetensors"
    weights = load_file(file)
    gone = [name for name in weights if ".h.1." in name]
    save_file({k: v for k, v in weights.items() if k not in gone}, file)
    model = planned(gpt2, 1, HF_MESHES[0])
    with pytest.raises(ValueError, match=r"missing.*: transformer\.h\.1\.ln_1\.weight"):
        checkpoint.from_hf(tmp_path / "a", model)
    before, theirs = on_cpu(model), on_cpu(whole)
    checkpoint.from_hf(tmp_path / "a", model, strict=False)
    for key, value in on_cpu(model).items():
        want = before if ".h.1." in key else theirs
        assert torch.equal(value, want[key]), key
