"""What was saved on one mesh comes back on another, bit by bit."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh, checkpoint
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._manifest import read_manifest
from tests.on_device import split_by, sync
from tests.spmd.checkpoints import (
    MESHES,
    Uneven,
    moments,
    on_cpu,
    same,
    split,
    start,
    with_moments,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*does not divide over")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint written on (8,), and what was in it."""
    torch.manual_seed(0)
    model = split(Uneven(), "8")
    optimizer = with_moments(model)
    path = tmp_path_factory.mktemp("saved") / "a"
    checkpoint.save(path, model, optimizer, step=7)
    return path, on_cpu(model), moments(model, optimizer)


def test_from_mesh_to_mesh_to_one_device(saved, tmp_path):
    """(8,) to (4,2) to (2,4) to one with copies, and to plain torch."""
    path, weights, state = saved
    for name in ("4x2", "2x4", "copies"):
        model = split(Uneven(), name)
        optimizer = torch.optim.AdamW(model.parameters())
        assert checkpoint.load(path, model, optimizer).step == 7
        same(on_cpu(model), weights)
        same(moments(model, optimizer), state)
        mesh, spec = MESHES[name]
        for parameter in model.parameters():
            wanted = spec[: parameter.ndim]
            assert split_by(parameter, mesh, wanted)
            entry = optimizer.state[parameter]["exp_avg"]
            assert split_by(entry, mesh, wanted)
            assert spmd.get_sharding(entry) == spmd.get_sharding(parameter)
        path = tmp_path / name
        checkpoint.save(path, model, optimizer, step=7)
    plain = Uneven()
    optimizer = torch.optim.AdamW(plain.parameters())
    checkpoint.load(path, plain, optimizer)
    same(on_cpu(plain), weights)
    same(moments(plain, optimizer), state)
    assert plain.head.weight is plain.embed.weight


def test_a_process_that_never_saw_xla_reads_it(saved, tmp_path):
    path, weights, state = saved
    torch.save((weights, state), tmp_path / "wanted.pt")
    source = f"""
import sys
sys.modules["torch_xla"] = None  # importing it fails
import torch
from torch import nn
from spmd import checkpoint
class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(13, 50, bias=False)
        self.head = nn.Linear(13, 50)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(0.0))
        self.narrow = nn.Parameter(torch.zeros(9, 3).bfloat16())
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))
model = Uneven()
optimizer = torch.optim.AdamW(model.parameters())
sys.modules.pop("torch_xla")
assert checkpoint.load({str(path)!r}, model, optimizer).step == 7
assert "torch_xla" not in sys.modules
weights, state = torch.load({str(tmp_path / "wanted.pt")!r})
for key, value in model.state_dict().items():
    assert torch.equal(value, weights[key]), key
for name, parameter in model.named_parameters():
    for key, value in optimizer.state[parameter].items():
        assert torch.equal(value, state[f"{{name}}.{{key}}"]), (name, key)
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("lazy", [True, False], ids=["lazy", "replay"])
def test_a_restarted_run_has_the_losses_of_an_uninterrupted_one(lazy, tmp_path):
    whole = start(0, lazy=lazy)
    losses = whole.go(11)
    first = start(0, lazy=lazy)
    assert first.go(7) == losses[:7]  # in the middle of the second epoch
    checkpoint.save(tmp_path / "a", first.model, first.optimizer, step=7, **first.kept)
    assert first.go(1) == losses[7:8]  # saving changes nothing
    again = start(1, lazy=lazy)
    again.go(2)
    checkpoint.load(tmp_path / "a", again.model, again.optimizer, **again.kept)
    again.batches = None
    assert again.loader.epoch == 1
    assert again.go(4) == losses[7:]
    same(on_cpu(again.model), on_cpu(whole.model))
    same(moments(again.model, again.optimizer), moments(whole.model, whole.optimizer))


def test_a_restarted_run_on_jax_has_the_same_losses(tmp_path):
    whole = start(0, runtime="jax")
    losses = whole.go(11)
    first = start(0, runtime="jax")
    assert first.go(7) == losses[:7]
    checkpoint.save(tmp_path / "a", first.model, first.optimizer, step=7, **first.kept)
    assert next(first.model.parameters()).device.type == "meta"  # was not brought back
    assert first.go(1) == losses[7:8]
    again = start(1, runtime="jax")
    again.go(1)
    checkpoint.load(tmp_path / "a", again.model, again.optimizer, **again.kept)
    again.batches = None
    assert again.go(4) == losses[7:]
    same(on_cpu(again.model), on_cpu(whole.model))


def test_keys_have_no_wrapper_prefixes(tmp_path):
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for model in (
        FSDPv2(layers, Mesh({"fsdp": 8}), auto_wrap_policy={nn.Linear}),
        torch.compile(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))),
        nn.DataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))),
    ):
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        path = tmp_path / type(model).__name__
        checkpoint.save(path, model, optimizer)
        keys = set(read_manifest(folder_at(path)).tensors)
        assert keys == {f"model.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")}


def test_a_model_on_meta_gets_its_values_in_shards(saved):
    path, weights, _ = saved
    with spmd.meta_parameters():
        model = Uneven()
    mesh, spec = MESHES["4x2"]
    for parameter in model.parameters():
        spmd.mark_sharding(parameter, mesh, spec[: parameter.ndim])
    held = model.embed.weight
    checkpoint.load(path, model)
    assert model.embed.weight is held and model.head.weight is held
    assert split_by(held, mesh, spec)
    assert isinstance(held, nn.Parameter) and held.requires_grad
    same(on_cpu(model), weights)
    assert model.scratch.device.type == "xla"
    x = torch.ones(2, 13).to("xla")
    plain = Uneven()
    plain.load_state_dict(weights)
    torch.testing.assert_close(model(x).cpu(), plain(torch.ones(2, 13)))


def test_dtypes_are_converted_or_taken(saved):
    path, weights, _ = saved
    for assign in (False, True):
        model = split(Uneven().bfloat16(), "8")
        checkpoint.load(path, model, assign=assign)
        wanted = torch.float32 if assign else torch.bfloat16
        weight = model.embed.weight
        assert weight.dtype == wanted
        assert torch.equal(weight.cpu(), weights["embed.weight"].to(wanted))
        assert split_by(weight, MESHES["8"][0], ("a", None))
        assert spmd.get_sharding(weight).spec == ("a", None)
        plain = Uneven().bfloat16()
        checkpoint.load(path, plain, assign=assign)
        assert torch.equal(plain.embed.weight, weights["embed.weight"].to(wanted))


def test_a_model_split_by_torch_xla_alone_stays_split(saved):
    import numpy as np
    import torch_xla.distributed.spmd as xs

    path, weights, _ = saved
    model = spmd.to_device(Uneven())
    mesh = xs.Mesh(np.arange(8), (4, 2), ("x", "y"))
    xs.mark_sharding(model.embed.weight, mesh, ("y", "x"))
    sync()
    checkpoint.load(path, model)
    same(on_cpu(model), weights)
    assert split_by(model.embed.weight, Mesh({"x": 4, "y": 2}), ("y", "x"))


def test_extra_is_filled_in_place_or_returned(tmp_path):
    torch.manual_seed(0)
    model, average = split(Uneven(), "8"), split(Uneven(), "8")
    table = {"a": torch.arange(5), "b": [torch.ones(2), 3]}
    scaler = torch.optim.lr_scheduler.ConstantLR(with_moments(model))
    extra = {"average": average, "table": table, "note": "x", "scaler": scaler}
    checkpoint.save(tmp_path / "a", model, extra=extra)
    back = checkpoint.load(tmp_path / "a", model)
    assert back.extra["note"] == "x"
    assert torch.equal(back.extra["table"]["a"], table["a"])
    assert torch.equal(back.extra["table"]["b"][0], torch.ones(2))
    assert back.extra["table"]["b"][1] == 3
    other = split(Uneven(), "4x2")
    mine = {"a": torch.zeros(5, dtype=torch.int64), "b": [torch.zeros(2)]}
    back = checkpoint.load(
        tmp_path / "a", model, extra={"average": other, "table": mine, "scaler": scaler}
    )
    same(on_cpu(other), on_cpu(average))
    assert torch.equal(mine["a"], table["a"]) and torch.equal(
        mine["b"][0], torch.ones(2)
    )
    assert set(back.extra) == {"note"}


def test_what_does_not_fit_is_named_and_nothing_changes(saved):
    path, _, _ = saved

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedd = nn.Linear(13, 50, bias=False)
            self.head = nn.Linear(13, 49)

    model = Other()
    before = on_cpu(model)
    with pytest.raises(ValueError, match="does not fit the model") as caught:
        checkpoint.load(path, model)
    text = str(caught.value)
    assert (
        "missing from the checkpoint: model.embedd.weight [50, 13] "
        "(near: model.embed.weight)" in text
    )
    assert "not in the model: model.scale []" in text
    assert "model.head.bias is [50] in the checkpoint, [49] in the model" in text
    same(on_cpu(model), before)


def test_what_is_missing_may_be_left_out(saved):
    path, weights, _ = saved
    model = Uneven()
    model.more = nn.Parameter(torch.ones(2))
    back = checkpoint.load(path, model, strict=False)
    assert back.missing == ("model.more",)
    assert torch.equal(model.head.bias, weights["head.bias"])
    del model.more, model.scale
    assert checkpoint.load(path, model, strict=False).unexpected == ("model.scale",)


def test_what_was_not_saved_cannot_be_loaded(tmp_path):
    model = Uneven()
    checkpoint.save(tmp_path / "a", model)
    with pytest.raises(ValueError, match="has no optimizer state"):
        checkpoint.load(tmp_path / "a", model, torch.optim.SGD(model.parameters()))
    optimizer = with_moments(model)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with pytest.raises(ValueError, match="has no scheduler; it was saved without"):
        checkpoint.load(tmp_path / "a", model, scheduler=scheduler)
    with pytest.raises(ValueError, match="has no loader; it was saved without"):
        checkpoint.load(
            tmp_path / "a", model, loader=spmd.ShardedLoader([], Mesh({"a": 8}))
        )


def test_random_generators_come_back_if_wanted(tmp_path):
    model = Uneven()
    checkpoint.save(tmp_path / "a", model)
    wanted = torch.rand(3)
    checkpoint.load(tmp_path / "a", model)
    assert torch.equal(torch.rand(3), wanted)
    checkpoint.load(tmp_path / "a", model, random=False)
    assert not torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("nested", [None, "model", "state_dict"])
def test_files_of_torch_save(nested, tmp_path, saved):
    _, weights, _ = saved
    weights = dict(weights)
    if nested == "model":
        weights = {f"module.{k}": v for k, v in weights.items()}
    torch.save(weights if nested is None else {nested: weights}, tmp_path / "a.pt")
    model = split(Uneven(), "2x4")
    back = checkpoint.load(tmp_path / "a.pt", model)
    same(on_cpu(model), saved[1])
    assert back.step is None


def test_a_loader_that_knows_its_position_needs_as_many_processes(
    tmp_path, monkeypatch
):
    from spmd.checkpoint import _load
    from spmd.checkpoint._team import Team

    class Own:
        def state_dict(self):
            return {"own": {"at": 1}}

        def load_state_dict(self, state):
            pass

    model = Uneven()
    checkpoint.save(tmp_path / "a", model, loader=Own())
    checkpoint.load(tmp_path / "a", model, loader=Own())
    monkeypatch.setattr(_load, "current_team", lambda: Team(1, 2))
    with pytest.raises(ValueError, match=r"one for each process; .* has 1, this run 2"):
        checkpoint.load(tmp_path / "a", model, loader=Own())


MEMORY = """
import sys
import spmd
spmd.init(cpu_devices=8)
import torch
from torch import nn
from spmd import checkpoint

def resident(key):
    with open("/proc/self/status") as lines:
        return next(int(l.split()[1]) for l in lines if l.startswith(key)) * 1024

def network():
    return nn.ParameterList([nn.Parameter(torch.empty(4096, 2048)) for _ in range(8)])

if sys.argv[2] == "save":
    checkpoint.save(sys.argv[1] + "/a", network())
    checkpoint.save(sys.argv[1] + "/warm", nn.Linear(4, 4))
else:
    with spmd.meta_parameters():
        model = network()
    spec = {"rows": ("a", None), "columns": (None, "a")}[sys.argv[2]]
    for parameter in model:
        spmd.mark_sharding(parameter, spmd.Mesh({"a": 8}), spec)
    checkpoint.load(sys.argv[1] + "/warm", nn.Linear(4, 4))
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
    before = resident("VmRSS")
    checkpoint.load(sys.argv[1] + "/a", model)
    largest = 4096 * 2048 * 4
    print((resident("VmHWM") - before - 8 * largest) / largest)
"""


@pytest.mark.slow
def test_the_host_never_holds_the_whole_model(run_script, tmp_path):
    """Eight tensors of 32 MiB: at most two of them above the shards.

    The devices are part of the same memory, and what malloc keeps for later is not to
    be counted.
    """
    assert run_script(MEMORY, str(tmp_path), "save").rc == 0
    for how in ("rows", "columns"):
        limit = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
        done = run_script(MEMORY, str(tmp_path), how, env=limit)
        assert done.rc == 0, done.stderr
        assert 0 < float(done.stdout) < 2.0, how
