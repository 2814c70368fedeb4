"""A training in jax's arrays is saved and loaded where it is."""

import pytest
import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh, checkpoint
from spmd._torch_xla import graph as torch_xla_graph
from spmd.checkpoint import CheckpointError, _jax_values
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._manifest import read_manifest
from tests.spmd.checkpoints import moments, on_cpu, same

MESH = Mesh({"fsdp": 8})
BATCH = torch.randn(8, 13, generator=torch.Generator().manual_seed(2))

pytestmark = pytest.mark.filterwarnings("ignore:.*does not divide over")


class Net(nn.Module):
    """13 divides by nothing; the step reads two of the four buffers and parameters."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(13, 13)
        self.drop = nn.Dropout(0.3)
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("count", torch.randn(4))

    def forward(self, x):
        return self.drop(self.linear(x))


class Training:
    """A model, its optimizer, and steps that train and evaluate."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = FSDPv2(Net(), MESH, min_shard_elements=1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        options = {"model": self.model, "optimizer": self.optimizer}
        self.step = spmd.compile_step(self._train, runtime="jax", **options)
        self.check = spmd.compile_step(self._loss, runtime="jax", **options)

    def _loss(self, x):
        return (self.model(x) - x).square().mean()

    def _train(self, x):
        loss = self._loss(x)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def go(self, num):
        return [self.step(BATCH).item() for _ in range(num)]

    @property
    def away(self):
        return {t.device.type for t in self.step.tensors().values()} == {"meta"}


@pytest.fixture(scope="module")
def run():
    training = Training(0)
    training.go(1)
    return training


@pytest.fixture(scope="module")
def other():
    training = Training(1)
    training.go(2)
    return training


def test_values_and_seed_stay_on_the_devices_on_both_sides(run, other, tmp_path):
    checkpoint.save(tmp_path / "a", run.model, run.optimizer)
    assert run.away
    losses = run.go(3)
    checkpoint.load(tmp_path / "a", other.model, other.optimizer)
    assert other.away
    assert other.go(3) == losses
    assert other.away
    same(on_cpu(other.model), on_cpu(run.model))
    same(moments(other.model, other.optimizer), moments(run.model, run.optimizer))


def test_random_numbers_go_on_if_wanted(run, other, tmp_path):
    run.go(1)
    checkpoint.save(tmp_path / "a", run.model, run.optimizer)
    losses = run.go(1)
    before = _jax_values.seed(other.model)
    checkpoint.load(tmp_path / "a", other.model, other.optimizer, random=False)
    assert _jax_values.seed(other.model) == before
    assert other.go(1) != losses


def test_what_no_step_reads_is_saved_and_loaded_too(run, other, tmp_path):
    run.go(1)
    other.go(1)
    with torch.no_grad():
        other.model.state_dict()["unused"].add_(1)
    other.go(1)
    checkpoint.save(tmp_path / "a", run.model, run.optimizer)
    checkpoint.load(tmp_path / "a", other.model, other.optimizer)
    assert run.away and other.away
    weights = on_cpu(run.model)
    assert set(weights) == {"linear.weight", "linear.bias", "unused", "count"}
    same(on_cpu(other.model), weights)


def test_a_step_that_only_evaluates_came_first(tmp_path):
    """The optimizer's state is hollow then, and nobody has its values."""
    training = Training(0)
    training.check(BATCH)
    checkpoint.save(tmp_path / "a", training.model, training.optimizer)
    on_cpu(training.model)
    state = moments(training.model, training.optimizer)
    assert len(state) == 9 and not any(value.any() for value in state.values())
    wanted = training.go(2)
    checkpoint.load(tmp_path / "a", training.model, training.optimizer)
    assert training.go(2) == wanted


def test_the_seed_goes_on_from_variant_to_variant():
    """As it does on torch_xla: a step that evaluates draws nothing in between."""
    losses = []
    for runtime in ("torch_xla", "jax"):
        torch_xla_graph.set_seed(5)
        torch.manual_seed(0)
        model = FSDPv2(Net(), MESH, min_shard_elements=1)
        step = spmd.compile_step(
            lambda x, model=model: (model(x) - x).square().mean(),
            model=model,
            runtime=runtime,
        )
        found = []
        with torch.no_grad(), pytest.warns(UserWarning, match="compiling graph 2"):
            for training in (False, True, False, True, True, False, True):
                model.train(training)
                batch = spmd.shard_batch(BATCH, MESH)
                found.append(step(batch).item())
        losses.append(torch.tensor(found))
    torch.testing.assert_close(*losses)


def test_restore_falls_back_where_it_is(run, tmp_path):
    manager = checkpoint.Manager(tmp_path, keep=2)
    run.go(1)
    manager.save(1, run.model, run.optimizer)
    wanted = run.go(2)
    manager.save(3, run.model, run.optimizer)
    path = tmp_path / "step-00000003"
    piece = read_manifest(folder_at(path)).tensors["model.linear.bias"].pieces[-1]
    with (path / piece.file).open("r+b") as stream:
        stream.seek(piece.at + piece.size_bytes // 2)
        stream.write(b"damage")
    with pytest.warns(UserWarning, match=r"step 3 cannot be used.*model.linear.bias"):
        assert manager.restore(run.model, run.optimizer).step == 1
    assert run.away
    assert run.go(2) == wanted


def test_parts_and_wholes_of_the_model_and_extra_modules(run, other, tmp_path):
    run.go(1)
    other.go(1)
    inner = run.model.linear
    extra = {"other": other.model}
    checkpoint.save(tmp_path / "part", inner)
    checkpoint.save(tmp_path / "whole", nn.ModuleList([run.model]), extra=extra)
    assert run.away and other.away
    weights, others = on_cpu(run.model), on_cpu(other.model)
    run.go(1)
    other.go(1)
    checkpoint.load(tmp_path / "part", inner)
    assert run.away
    assert torch.equal(on_cpu(run.model)["linear.weight"], weights["linear.weight"])
    run.go(1)
    checkpoint.load(tmp_path / "whole", nn.ModuleList([run.model]), extra=extra)
    assert run.away and other.away
    same(on_cpu(run.model), weights)
    same(on_cpu(other.model), others)


def test_a_damaged_piece_leaves_a_state_that_trains(run, tmp_path):
    run.go(1)
    checkpoint.save(tmp_path / "a", run.model, run.optimizer)
    manifest = read_manifest(folder_at(tmp_path / "a"))
    piece = manifest.tensors["optimizer.linear.weight.exp_avg"].pieces[0]
    with (tmp_path / "a" / piece.file).open("r+b") as stream:
        stream.seek(piece.at + piece.size_bytes // 2)
        stream.write(b"damage")
    with pytest.raises(CheckpointError, match=r"linear.weight.exp_avg.*damaged"):
        checkpoint.load(tmp_path / "a", run.model, run.optimizer)
    assert run.away
    assert all(loss == loss for loss in run.go(2))


def test_other_dtypes_and_a_new_optimizer_bring_it_back(run, tmp_path):
    run.go(1)
    checkpoint.save(tmp_path / "a", run.model, run.optimizer)
    weights, state = on_cpu(run.model), moments(run.model, run.optimizer)
    run.go(1)
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.1)
    checkpoint.load(tmp_path / "a", run.model, optimizer)
    assert next(run.model.parameters()).device.type == "xla"
    same(on_cpu(run.model), weights)
    same(moments(run.model, optimizer), state)
    torch.save({k: v.double() for k, v in weights.items()}, tmp_path / "a.pt")
    run.go(1)
    checkpoint.load(tmp_path / "a.pt", run.model)
    assert next(run.model.parameters()).device.type == "meta"
    same(on_cpu(run.model), weights)
    run.go(1)
    checkpoint.load(tmp_path / "a.pt", run.model, assign=True)
    assert run.model.linear.weight.dtype == torch.float64


MEMORY = """
import sys
import spmd
spmd.init(runtime="jax", cpu_devices=8)
import torch
from torch import nn
from spmd import checkpoint

def resident(key):
    with open("/proc/self/status") as lines:
        return next(int(l.split()[1]) for l in lines if l.startswith(key)) * 1024

spec = {"rows": ("fsdp", None), "columns": (None, "fsdp")}[sys.argv[2]]
model = nn.ParameterList([nn.Parameter(torch.ones(2048, 2048)) for _ in range(4)])
for parameter in model:
    spmd.mark_sharding(parameter, spmd.Mesh({"fsdp": 8}), spec)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def train(x):
    loss = sum((x @ p).square().mean() for p in model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

step = spmd.compile_step(train, model=model, optimizer=optimizer)
x = torch.ones(8, 2048)
step(x)
checkpoint.save(sys.argv[1] + "/a", model, optimizer)
wanted = float(step(x))
checkpoint.save(sys.argv[1] + "/warm", nn.Linear(4, 4))
checkpoint.load(sys.argv[1] + "/warm", nn.Linear(4, 4))
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = resident("VmRSS")
checkpoint.load(sys.argv[1] + "/a", model, optimizer)
print((resident("VmHWM") - before) / (2048 * 2048 * 4))
assert float(step(x)) == wanted
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rows", "columns"])
def test_the_host_holds_the_pieces_of_two_tensors(how, run_script, tmp_path):
    """Eight tensors of 16 MiB, four of them moments, are replaced in the devices.

    The devices are part of the same memory, and what malloc keeps for later is not to
    be counted.
    """
    limit = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
    done = run_script(MEMORY, str(tmp_path), how, env=limit)
    assert done.rc == 0, done.stderr
    assert 0 < float(done.stdout) < 2.0
