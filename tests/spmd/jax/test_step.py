"""The same script on torch_xla and on jax: equal losses, and the model sees values."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys
import spmd

runtime, at = sys.argv[1], sys.argv[2]
spmd.init(cpu_devices=8, runtime=runtime if at == "init" else None)

import torch
import torch.nn.functional as F
from torch import nn
from fsdpv2 import FSDPv2

if at == "step" and runtime == "jax":
    import jax
    jax.config.update("jax_num_cpu_devices", 8)
mesh = spmd.Mesh({"replica": 2, "fsdp": 4})
torch.manual_seed(0)
net = nn.Sequential(
    nn.Embedding(250, 64), nn.Linear(64, 128), nn.BatchNorm1d(8), nn.GELU(),
    nn.Dropout(0.1), nn.Linear(128, 250, bias=False),
)
model = FSDPv2(net, mesh, min_shard_elements=64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)

def train_step(batch):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten())
    loss.backward()
    norm = model.clip_grad_norm_(1.0)
    optimizer.step()
    return {"loss": loss, "norm": norm, "rows": 16}

options = {"runtime": runtime} if at == "step" else {}
step = spmd.compile_step(train_step, model=model, optimizer=optimizer, **options)
evaluate = spmd.compile_step(lambda batch: F.cross_entropy(
    model(batch["x"]).flatten(0, 1), batch["y"].flatten()), model=model, **options)
random = torch.Generator().manual_seed(1)

def batch():
    x = torch.randint(0, 250, (16, 8), generator=random)
    return spmd.shard_batch({"x": x, "y": x.roll(1)}, mesh)

for number in range(8):
    result = step(batch())
    schedule.step()
    print("LOSS", number, f"{result['loss'].item():.9f}", float(result["norm"]))
    if number == 2:  # read in the middle
        values = {n: v.cpu() for n, v in model.state_dict().items()}
        print("SUM", sum(v.double().sum().item() for v in values.values()))
    if number == 3:  # change in the middle
        values["1.weight"] *= 0.5
        model.load_state_dict(values)
        optimizer.load_state_dict(optimizer.state_dict())
    if number == 5:  # another graph over the same state
        model.eval()
        with torch.no_grad():
            print("EVAL", f"{evaluate(batch()).item():.9f}")
        model.train()
print("SUM", sum(v.double().sum().item() for v in model.state_dict().values()))
print("MOMENTS", sum(
    s["exp_avg"].double().sum().item()
    for s in optimizer.state_dict()["state"].values()))
print("GRAPHS", step.num_graphs)
"""


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"(?<= )-?\d+\.\d+(?:e-?\d+)?", text)]


def test_the_same_script_gives_the_same_on_every_runtime(run_script):
    results = {}
    for runtime, at in (("torch_xla", "init"), ("jax", "init"), ("jax", "step")):
        result = run_script(SCRIPT, runtime, at)
        assert result.rc == 0, result.stderr
        results[runtime, at] = result.stdout
    reference = numbers(results["torch_xla", "init"])
    assert len(reference) == 8 * 2 + 4
    for text in results.values():
        assert numbers(text) == pytest.approx(reference, rel=1e-5, abs=1e-5)
        assert text.splitlines()[-1] == "GRAPHS 1"


REFUSALS = """
import warnings
import spmd
spmd.init(cpu_devices=8, runtime="jax")
import torch
from fsdpv2 import FSDPv2

def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except (ValueError, RuntimeError) as error:
        print(type(error).__name__, error)
    else:
        print("no error")

refused(spmd.init, runtime="torch_xla")
refused(spmd.init, runtime="tpu")
refused(spmd.init, runtime="jax", cpu_devices=4)
model = FSDPv2(torch.nn.Linear(64, 64))
refused(FSDPv2, torch.nn.Linear(64, 64), spmd.Mesh({"fsdp": 4}))
step = spmd.compile_step(lambda x: model(x).sum(), model=model, max_graphs=1)
mesh = model.mesh
print(step(spmd.shard_batch(torch.ones(8, 64), mesh)).item() != 0)
refused(step, spmd.shard_batch(torch.ones(16, 64), mesh))
refused(model.weight.sum().item)
step.pull()
print(model.weight.sum().item() != 0)
bad = spmd.compile_step(lambda x: model(x).sum().item(), model=model)
refused(bad, spmd.shard_batch(torch.ones(8, 64), mesh))
print(step(spmd.shard_batch(torch.ones(8, 64), mesh)).item() != 0)
"""


def test_refusals_on_jax_name_what_is_wrong(run_script):
    result = run_script(REFUSALS)
    assert result.rc == 0, result.stderr
    lines = result.stdout.splitlines()
    expected = [
        "RuntimeError init: runtime='torch_xla', but this process already runs on",
        "ValueError init: runtime='tpu'; 'torch_xla', 'jax' or 'auto' is needed",
        "RuntimeError init: cpu_devices=4, but jax already runs with 8 cpu devices",
        "ValueError weight",
        "True",
        "CaptureError the step needs another graph, beyond max_graphs=1",
        "RuntimeError",
        "True",
        "HostReadError the step reads a device value on the host",
        "True",
    ]
    assert len(lines) == len(expected), result.stdout
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start), result.stdout


TWO = """
import sys
import jax
process, port = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, process)
import spmd
spmd.init(runtime="jax", cpu_devices=4)
import torch
from fsdpv2 import FSDPv2

mesh = spmd.Mesh({"replica": 2, "fsdp": -1})
torch.manual_seed(0)
model = FSDPv2(torch.nn.Linear(64, 64), mesh, min_shard_elements=64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

def train_step(x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
part, parts = spmd.data_rank(mesh)
assert (part, parts) == (process, 2)
rows = torch.arange(16 * 64).reshape(16, 64).float().sin()
loader = spmd.ShardedLoader([rows[8 * part : 8 * part + 8]] * 3, mesh)
for x in loader:
    print("LOSS", f"{step(x).item():.9f}")
if len(sys.argv) > 3:  # process 1 runs something else
    model.requires_grad_(process == 0)
    try:
        for x in loader:
            step(x)
    except Exception as error:
        print(type(error).__name__, error)
else:
    print("SUM", sum(v.double().sum().item() for v in model.state_dict().values()))
"""


@pytest.fixture
def two_processes(tmp_path):
    """Run a script twice side by side; returns what each printed."""

    def run(source: str, *args: str) -> list[str]:
        script = tmp_path / "two.py"
        script.write_text(source)
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = str(probe.getsockname()[1])
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        variables.pop("JAX_NUM_CPU_DEVICES", None)
        children = [
            subprocess.Popen(
                [sys.executable, str(script), process, port, *args],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for process in "01"
        ]
        try:
            ends = [child.communicate(timeout=180) for child in children]
        finally:
            for child in children:
                child.kill()
        for child, (_, errors) in zip(children, ends, strict=True):
            assert child.returncode == 0, errors
        return [out for out, _ in ends]

    return run


GRADIENTS = """
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        spmd.mark_sharding(self.down.weight, mesh, (None, "fsdp"))

    def forward(self, x):
        hidden = spmd.mark_sharding(self.up(x), mesh, ("replica", "fsdp"))
        return self.down(hidden.tanh())

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

def train_step(x, update):
    loss = model(x).square().mean() / 2
    loss.backward()
    if update:
        optimizer.step()
        optimizer.zero_grad()
    return loss

step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
spec = ("replica", None)
part, parts = spmd.data_rank(mesh, spec)
rows = torch.arange(16 * 64).reshape(16, 64).float().sin()
loader = spmd.ShardedLoader(
    [rows[16 // parts * part : 16 // parts * (part + 1)]] * 4, mesh, spec
)
for number, x in enumerate(loader):
    print("LOSS", f"{step(x, number % 2 == 1).item():.9f}")
print("SUM", sum(v.double().sum().item() for v in model.state_dict().values()))
"""


def test_gradients_that_two_processes_keep_between_graphs(run_script, two_processes):
    """A gradient that nobody annotated is split as its compiler chose; the graph that
    reads it next wants it whole."""
    head = TWO.partition("mesh = ")[0].replace("from fsdpv2 import FSDPv2\n", "")
    body = (
        """
mesh = spmd.Mesh({"replica": 2, "fsdp": -1})
class Model(torch.nn.Module):"""
        + GRADIENTS
    )
    one = """
import spmd
spmd.init(cpu_devices=8, runtime="jax")
import torch
"""
    reference = run_script(one + body)
    assert reference.rc == 0, reference.stderr
    losses = numbers(reference.stdout)
    assert losses[1] == losses[0] > losses[2]
    for text in two_processes(head + body):
        assert numbers(text) == pytest.approx(losses, rel=1e-5)


def test_two_processes_train_with_the_losses_of_one(run_script, two_processes):
    one = """
import spmd
spmd.init(cpu_devices=8, runtime="jax")
""" + TWO.partition("cpu_devices=4)")[2].replace("process, 2", "0, 1").replace(
        "rows[8 * part : 8 * part + 8]", "rows"
    ).replace("len(sys.argv) > 3", "False")
    reference = run_script(one)
    assert reference.rc == 0, reference.stderr
    for text in two_processes(TWO):
        assert numbers(text) == pytest.approx(numbers(reference.stdout), rel=1e-5)
