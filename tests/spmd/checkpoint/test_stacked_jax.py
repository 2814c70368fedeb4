"""Checkpoints of stacked layers where jax executes: promised values, two processes."""

import pytest

from tests.two_processes import TWO_PROCESSES

MODEL = """
import torch
from torch import nn
from fsdpv2 import FSDPv2, materialize
from spmd import Mesh, checkpoint
from spmd._marking.promise import promised
from spmd.checkpoint._source import source_at

mesh = Mesh({"fsdp": 8})

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(13, 24)
        self.down = nn.Linear(24, 13)
        self.register_buffer("shift", torch.randn(13))

    def forward(self, x):
        return x + self.down(self.up(x).relu()) + self.shift

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(13, 13)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def plain(seed):
    torch.manual_seed(seed)
    return Model()

class Training:
    def __init__(self, seed, meta=True, scan=True):
        net = plain(seed)
        if meta:
            with spmd.meta_parameters():
                net = Model()
        self.model = FSDPv2(net, mesh, min_shard_elements=1, scan_layers=scan)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.step = spmd.compile_step(
            self._train, model=self.model, optimizer=self.optimizer
        )
        self.both = self.model, self.optimizer

    def _train(self, x):
        loss = (self.model(x) - x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def go(self, num):
        return [self.step(batch()).item() for _ in range(num)]

def equal(one, two):
    one, two = source_at(one), source_at(two)
    assert one.kinds == two.kinds
    for key in one.kinds:
        assert torch.equal(one.whole(key), two.whole(key)), key

def weights(model):
    return {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}

def same(one, two):
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert torch.equal(value, two[key]), key
"""

ONE = (
    """
import sys
import spmd
spmd.init(runtime="jax", cpu_devices=8)
folder = sys.argv[1]
"""
    + MODEL
    + """
BATCH = torch.randn(8, 13, generator=torch.Generator().manual_seed(2))
batch = lambda: BATCH
"""
)

RESTART = """
run = Training(0, meta=False)
run.go(2)
manager = checkpoint.Manager(folder + "/run", asynchronous=True)
manager.save(2, *run.both)
wanted = run.go(3)
for meta in (True, False):
    again = Training(1, meta)
    assert manager.restore(*again.both).step == 2
    assert all(promised(p) is not None for p in again.model.parameters()) == meta
    arrays = [promised(p).array.array for p in again.model.parameters() if promised(p)]
    checkpoint.save(f"{folder}/{meta}", *again.both)
    equal(f"{folder}/{meta}", manager.path(2))
    assert again.go(3) == wanted
    assert all(a.is_deleted() for a in arrays)  # no device held anything twice
    manager.restore(*again.both)  # where they are, in a running step's arrays
    assert {t.device.type for t in again.model.parameters()} == {"meta"}
    assert again.go(3) == wanted
other = Training(2, scan=False)
manager.restore(*other.both)
checkpoint.save(folder + "/b", *other.both)
equal(folder + "/b", manager.path(2))
torch.testing.assert_close(other.go(3), wanted, rtol=1e-5, atol=0)
"""

FIRST_VALUES = """
def first(module):
    for parameter in module.parameters(recurse=False):
        parameter.normal_()

made = Training(0)
materialize(made.model, init_fn=first)
checkpoint.save(folder + "/made", made.model)
want = weights(made.model)
other = Training(1)
checkpoint.load(folder + "/made", other.model)
same(weights(other.model), want)
checkpoint.save(folder + "/again", other.model)
equal(folder + "/again", folder + "/made")
"""

FILES = """
whole = plain(0)
checkpoint.export_hf(folder + "/plain", whole)
run = Training(1)
checkpoint.from_hf(folder + "/plain", run.model)
assert all(map(promised, run.model.parameters()))
checkpoint.export_hf(folder + "/promised", run.model)
run.go(1)
checkpoint.from_hf(folder + "/plain", run.model)
checkpoint.export_hf(folder + "/arrays", run.model)
assert {p.device.type for p in run.model.parameters()} == {"meta"}
same(weights(run.model), weights(whole))
from safetensors.torch import load_file
files = [f"{folder}/{n}/model.safetensors" for n in ("plain", "promised", "arrays")]
first, *others = map(load_file, files)
for one in others:
    same(dict(sorted(one.items())), dict(sorted(first.items())))
"""

SOME = """
whole = plain(0)
whole.layers[1] = nn.Identity()
checkpoint.save(folder + "/some", whole)
run = Training(1)
checkpoint.save(folder + "/full", plain(2))
checkpoint.load(folder + "/full", run.model)
assert all(map(promised, run.model.parameters()))
found = checkpoint.load(folder + "/some", run.model, strict=False)
assert "model.layers.1.up.weight" in found.missing
theirs, kept = whole.state_dict(), plain(2).state_dict()
same(weights(run.model), {k: theirs.get(k, kept[k]) for k in kept})
assert run.go(1)
"""

PARTS = {"restart": RESTART, "first": FIRST_VALUES, "files": FILES, "some": SOME}


@pytest.mark.parametrize("part", PARTS)
def test_one_process(part, run_script, tmp_path):
    done = run_script(ONE + PARTS[part], str(tmp_path), timeout_s=300)
    assert done.rc == 0, done.stderr


TWO = (
    TWO_PROCESSES
    + MODEL
    + """
rows = torch.randn(16, 13, generator=torch.Generator().manual_seed(2))
rows = rows[index * 8 : index * 8 + 8]
batch = lambda: spmd.shard_batch(rows, mesh)

run = Training(0, meta=False)
run.go(1)
checkpoint.save(folder + "/a", *run.both)
wanted = run.go(2)
for seed, scan in ((1, True), (2, False), (3, True)):
    run = Training(seed, scan=scan)
    checkpoint.load(folder + ("/a" if seed == 1 else "/b"), *run.both)
    assert all(map(promised, run.model.parameters()))
    if seed == 1:
        checkpoint.save(folder + "/b", *run.both)
        checkpoint.export_hf(folder + "/promised", run.model)
    else:
        checkpoint.save(f"{folder}/{seed}", *run.both)
        if index == 0:
            equal(f"{folder}/{seed}", folder + "/a")
    got = run.go(2)
    if scan:
        assert got == wanted, seed
    else:
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=0)
checkpoint.load(folder + "/a", *run.both)
checkpoint.export_hf(folder + "/arrays", run.model)
if index == 0:
    from safetensors.torch import load_file
    source = source_at(folder + "/a")
    for name in ("promised", "arrays"):
        found = load_file(f"{folder}/{name}/model.safetensors")
        assert {f"model.{n}" for n in found} == {
            n for n in source.kinds if n.startswith("model.")
        }
        for key, value in found.items():
            assert torch.equal(value, source.whole(f"model.{key}")), key
"""
)


@pytest.mark.slow
def test_two_processes(run_script, tmp_path):
    done = run_script(TWO, str(tmp_path), timeout_s=500)
    assert done.rc == 0, done.stderr


MEMORY = """
import sys
import spmd
spmd.init(runtime="jax", cpu_devices=8)
import torch
from torch import nn
from fsdpv2 import FSDPv2
from spmd import checkpoint
from spmd._marking.promise import promised

LAYERS, SIDE = 16, 1024

def resident(key):
    with open("/proc/self/status") as lines:
        return next(int(l.split()[1]) for l in lines if l.startswith(key)) * 1024

class Layer(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(side, side))

    def forward(self, x):
        return x @ self.weight

class Model(nn.Module):
    def __init__(self, side=SIDE):
        super().__init__()
        self.layers = nn.ModuleList(Layer(side) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def build(scan, side=SIDE):
    with spmd.meta_parameters():
        model = Model(side)
    model = FSDPv2(model, spmd.Mesh({"fsdp": 8}), scan_layers=scan)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def save(side, name):
    model = Model(side)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        momentum = torch.ones(side, side)
        optimizer.state[parameter]["momentum_buffer"] = momentum
    checkpoint.save(sys.argv[1] + name, model, optimizer)

if sys.argv[3] == "save":
    save(SIDE, "/a")
    save(128, "/warm")
    sys.exit()
scan = sys.argv[2] == "scan"
checkpoint.load(sys.argv[1] + "/warm", *build(scan, 128))
model, optimizer = build(scan)
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = resident("VmRSS")
checkpoint.load(sys.argv[1] + "/a", model, optimizer)
size = LAYERS * SIDE * SIDE * 4
moments = [table["momentum_buffer"] for table in optimizer.state.values()]
assert all(promised(t) for t in (*model.parameters(), *moments))
print((resident("VmHWM") - before) / size)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["scan", "apart"])
def test_the_devices_hold_each_stack_once(how, run_script, tmp_path):
    """Two stacks of 64 MiB go into the devices, whose memory is the host's here.

    A device array that is not written in place would be there twice.
    """
    limit = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
    for part in ("save", "load"):
        done = run_script(MEMORY, str(tmp_path), how, part, env=limit)
        assert done.rc == 0, done.stderr
    assert 1.9 < float(done.stdout) < 2.5
