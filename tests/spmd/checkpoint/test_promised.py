"""With jax, a checkpoint goes into the devices before any step has run."""

import pytest
import torch

from spmd import Mesh
from spmd._marking.mark import remember
from spmd._marking.promise import promise, promised
from spmd.checkpoint import _promised
from spmd.checkpoint._promised import can_promise, promise_from, promised_values
from spmd.checkpoint._source import Source
from spmd.checkpoint._team import Team
from tests.two_processes import TWO_PROCESSES

TRAINING = """
import sys
import spmd
spmd.init(runtime="jax", cpu_devices=8)
import torch
from torch import nn
from fsdpv2 import FSDPv2, materialize
from spmd import Mesh, checkpoint
from spmd._marking.promise import promised

folder = sys.argv[1]
BATCH = torch.randn(8, 13, generator=torch.Generator().manual_seed(2))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(13, 13)
        self.drop = nn.Dropout(0.3)
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("count", torch.randn(4))

    def forward(self, x):
        return self.drop(self.linear(x))

class Training:
    def __init__(self, seed, meta=True):
        torch.manual_seed(seed)
        net = Net()
        if meta:
            with spmd.meta_parameters():
                net = Net()
        self.model = FSDPv2(net, Mesh({"fsdp": 8}), min_shard_elements=1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
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
        return [self.step(BATCH).item() for _ in range(num)]

    def tensors(self):
        moments = [
            value for table in self.optimizer.state.values()
            for key, value in table.items() if key != "step"
        ]
        return [*self.model.parameters(), *moments]

    def values(self):
        return {**weights(self.model), **{
            f"{i}.{key}": value.clone()
            for i, table in self.optimizer.state_dict()["state"].items()
            for key, value in table.items()
        }}

def weights(model):
    return {k: v.clone() for k, v in model.state_dict().items()}

def same(one, two):
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert value.device.type == two[key].device.type == "cpu", key
        assert torch.equal(value, two[key]), key
"""

RESTART = """
run = Training(0, meta=False)
run.go(2)
manager = checkpoint.Manager(folder + "/run")
manager.save(2, *run.both)
before = run.values()
wanted = run.go(3)
after = run.values()
for meta in (True, False):
    again = Training(1, meta)
    assert manager.restore(*again.both).step == 2
    # A model that is on the CPU is filled there; its moments are not.
    found = [promised(t) is not None for t in again.tensors()]
    assert found == [meta] * 3 + [True] * 6, found
    arrays = [promised(t).array.array for t in again.tensors() if promised(t)]
    checkpoint.save(f"{folder}/{meta}", *again.both)
    assert again.go(1) == wanted[:1]
    if meta:  # the step took over the buffers: no device held anything twice
        used = [a.is_deleted() for a in arrays]
        assert used == [False] + [True] * 2 + [False] * 2 + [True] * 4, used
    assert again.go(2) == wanted[1:]
    same(again.values(), after)
    # What was saved before a step is the same; and it can be read before one.
    again = Training(1, meta)
    checkpoint.load(f"{folder}/{meta}", *again.both)
    same(again.values(), before)
    assert not any(map(promised, again.tensors()))
    assert again.go(3) == wanted
"""

FIRST_VALUES = """
def first(module):
    for parameter in module.parameters(recurse=False):
        parameter.normal_()

made = Training(0)
materialize(made.model, init_fn=first)
checkpoint.save(folder + "/made", made.model)
want = weights(made.model)
for seed in (1, 2):
    other = Training(seed)
    if seed == 2:
        materialize(other.model, init_fn=first, seed=5)
    checkpoint.load(folder + "/made", other.model)
    assert spmd.to_device(other.model) is other.model
    assert all(map(promised, other.model.parameters()))
    same(weights(other.model), want)

torch.save({k: v.double() for k, v in want.items()}, folder + "/a.pt")
other = Training(3).model
checkpoint.load(folder + "/a.pt", other, assign=True)
assert promised(other.linear.weight) and other.linear.weight.dtype == torch.float64
same({k: v.float() for k, v in weights(other).items()}, want)

# One that no step reads is promised until somebody asks.
other = Training(4)
materialize(other.model, init_fn=first)
for _ in range(2):
    other.go(1)
    assert torch.equal(other.model.state_dict()["unused"], want["unused"])

checkpoint.save(folder + "/full", *other.both)
other.go(1)
empty = Training(5)
try:
    checkpoint.save(folder + "/empty", *empty.both)
except ValueError as error:
    assert "load a checkpoint or call fsdpv2.materialize first" in str(error), error
else:
    raise AssertionError("it has no values")
"""


@pytest.mark.parametrize("part", [RESTART, FIRST_VALUES], ids=["restart", "first"])
def test_before_the_first_step(part, run_script, tmp_path):
    done = run_script(TRAINING + part, str(tmp_path))
    assert done.rc == 0, done.stderr


MEMORY = """
import sys
import spmd
spmd.init(runtime="jax", cpu_devices=8)
import torch
from torch import nn
from spmd import checkpoint
from spmd._marking.promise import promised

def resident(key):
    with open("/proc/self/status") as lines:
        return next(int(l.split()[1]) for l in lines if l.startswith(key)) * 1024

def build():
    model = nn.ParameterList([nn.Parameter(torch.ones(2048, 2048)) for _ in range(4)])
    mesh = spmd.Mesh({"fsdp": 8})
    for parameter in model:
        spec = {"rows": ("fsdp", None), "columns": (None, "fsdp")}[sys.argv[2]]
        spmd.mark_sharding(parameter, mesh, spec)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

if sys.argv[3] == "save":
    model, optimizer = build()
    for parameter in model:
        optimizer.state[parameter]["momentum_buffer"] = torch.ones(2048, 2048)
    checkpoint.save(sys.argv[1] + "/a", model, optimizer)
    checkpoint.save(sys.argv[1] + "/warm", nn.Linear(4, 4))
    sys.exit()
with spmd.meta_parameters():
    model, optimizer = build()
checkpoint.load(sys.argv[1] + "/warm", nn.Linear(4, 4))
import spmd._jax.held
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = resident("VmRSS")
checkpoint.load(sys.argv[1] + "/a", model, optimizer)
size = 2048 * 2048 * 4
moments = [table["momentum_buffer"] for table in optimizer.state.values()]
assert all(promised(t) for t in (*model, *moments))
print((resident("VmHWM") - before) / size)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rows", "columns"])
def test_the_host_holds_the_pieces_of_two_tensors_besides(how, run_script, tmp_path):
    """Eight tensors of 16 MiB go into the devices, part of the same memory."""
    limit = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
    done = run_script(MEMORY, str(tmp_path), how, "save", env=limit)
    assert done.rc == 0, done.stderr
    done = run_script(MEMORY, str(tmp_path), how, "load", env=limit)
    assert done.rc == 0, done.stderr
    assert 7.5 < float(done.stdout) < 8 + 2


TWO = (
    TWO_PROCESSES
    + """
import contextlib
import torch
from torch import nn
from fsdpv2 import FSDPv2
from spmd import checkpoint
from spmd._marking.promise import promised

mesh = spmd.Mesh({"fsdp": 8})
rows = torch.randn(16, 13, generator=torch.Generator().manual_seed(2))
rows = rows[index * 8 : index * 8 + 8]

def build(seed, meta=True):
    torch.manual_seed(seed)
    with spmd.meta_parameters() if meta else contextlib.nullcontext():
        net = nn.Linear(13, 13)
    model = FSDPv2(net, mesh, min_shard_elements=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(x):
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = spmd.compile_step(train, model=model, optimizer=optimizer)
    go = lambda: [float(step(spmd.shard_batch(rows, mesh))) for _ in range(2)]
    return model, optimizer, go

model, optimizer, go = build(0, meta=False)
go()
checkpoint.save(folder + "/a", model, optimizer)
wanted = go()
for seed in (1, 2, 3):
    model, optimizer, go = build(seed)
    checkpoint.load(folder + ("/a" if seed == 1 else "/b"), model, optimizer)
    assert all(map(promised, model.parameters()))
    if seed == 1:
        checkpoint.save(folder + "/b", model, optimizer)
    if seed == 3:
        assert model.state_dict()["weight"].device.type == "cpu"
        assert optimizer.state_dict()["state"][0]["exp_avg"].device.type == "cpu"
    assert go() == wanted, seed
"""
)


@pytest.mark.slow
def test_two_processes_each_read_and_write_their_own(run_script, tmp_path):
    done = run_script(TWO, str(tmp_path), timeout_s=300)
    assert done.rc == 0, done.stderr


@pytest.mark.parametrize("is_stack", [True, False])
def test_of_a_stack_a_row_at_a_time_is_read(is_stack):
    want = torch.arange(39.0).reshape(3, 13)
    asked = []

    class Stack(Source):
        url, kinds = "here", {"x": ("float32", (3, 13))}

        def is_stack(self, key):
            return is_stack

        def fill(self, key, regions, *, advance):
            asked.append({offset[0] for (offset, _), _ in regions})
            for (offset, shape), target in regions:
                box = (slice(o, o + n) for o, n in zip(offset, shape, strict=True))
                target.copy_(want[tuple(box)])

        def object(self, key):
            return None

        def objects(self):
            return ()

    tensor = torch.empty(3, 13, device="meta")
    remember(tensor, Mesh({"a": 8}), (None, "a"))
    promise_from(tensor, Stack(), "x", lambda _: None)
    assert asked == ([{0}, {1}, {2}] if is_stack else [{0}])
    held = promised(tensor)
    assert held is not None
    assert torch.equal(held((slice(0, 3), slice(0, 13))), want)
    for whole in (False, True):
        read = promised_values([tensor], whole=whole)[id(tensor)]
        row = torch.full((13,), -1.0)
        for (start,), data in read(1):
            row[start : start + len(data)] = data
        assert torch.equal(row, want[1])


def test_a_row_of_what_nobody_holds():
    want = torch.arange(39).reshape(3, 13)
    tensor = want.to("meta")
    remember(tensor, Mesh({"a": 8}), (None, "a"))
    promise(tensor, lambda index: want[index])
    for whole in (False, True):
        row = torch.full((13,), -1)
        for (start,), data in promised_values([tensor], whole=whole)[id(tensor)](2):
            row[start : start + len(data)] = data
        assert torch.equal(row, want[2])


def test_nothing_is_promised_where_jax_does_not_execute():
    tensor = torch.empty(8, device="meta")
    remember(tensor, Mesh({"a": 8}), ("a",))
    assert not can_promise(tensor)


@pytest.mark.parametrize("spec", [("a",), None, ((None),)])
def test_each_process_makes_its_share_of_what_nobody_holds(spec, monkeypatch):
    tensor, want = torch.empty(13, device="meta"), torch.arange(13)
    if spec is not None:
        remember(tensor, Mesh({"a": 8}), spec)
    promise(tensor, lambda index: want[index])
    found, counts = torch.full((13,), -1), []
    for process in range(2):
        monkeypatch.setattr(_promised, "current_team", lambda p=process: Team(p, 2))
        read = promised_values([tensor])[id(tensor)]
        parts = list(read())
        counts.append(len(parts))
        for (start,), data in parts:
            assert (found[start : start + len(data)] == -1).all()
            found[start : start + len(data)] = data
        ((offset, whole),) = promised_values([tensor], whole=True)[id(tensor)]()
        assert offset == (0,) and torch.equal(whole, want)
    assert torch.equal(found, want)
    assert counts == ([4, 3] if spec == ("a",) else [1, 0])
