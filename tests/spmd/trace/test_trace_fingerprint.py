"""The fingerprint of a traced step, and that it runs."""

import numpy as np
import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh, Program
from spmd._program.stablehlo import module_text
from tests.on_device import sync
from tests.spmd.tracing import (
    MESH,
    ROWS,
    adamw,
    batch_of,
    described,
    net,
    step_of,
    torch_xla_seed,
    traced,
    training,
    wrapped,
)
from tests.spmd.training import run_lazily

POD = Mesh({"fsdp": 512, "tensor": 8})


@pytest.fixture(scope="module")
def reference():
    return traced(wrapped("meta"))


def changed_spec():
    model = net()
    for parameter in model.parameters():
        spmd.mark_sharding(parameter, MESH, (None,) * parameter.ndim)
    return traced(model)


def changed_op():
    model = wrapped()
    model.layers[0].drop = nn.ReLU()
    return traced(model)


def changed_rate():
    model = wrapped()
    optimizer = adamw(model, weight_decay=0.5)
    return spmd.trace(
        step_of(model, optimizer), described(), model=model, optimizer=optimizer
    )


CHANGES = {
    "spec": changed_spec,
    "mesh": lambda: traced(wrapped(mesh=Mesh({"fsdp": 4}))),
    "shape": lambda: traced(wrapped(), described(2 * ROWS)),
    "dtype": lambda: traced(wrapped().bfloat16()),
    "operation": changed_op,
    "number": changed_rate,
    "mode": lambda: traced(wrapped(dropout=0.1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_programs_have_other_fingerprints(change, reference):
    program = CHANGES[change]()
    assert program.fingerprint != reference.fingerprint
    assert program.fingerprint == CHANGES[change]().fingerprint


def test_names_are_no_part_of_the_fingerprint(reference):
    program = traced(wrapped(), name="other")
    assert program.name == "other"
    assert program.fingerprint == reference.fingerprint
    assert "module @other" in module_text(program.module)


SCRIPT = """
import sys
{padding}
sys.path.insert(0, sys.argv[1])
from tests.spmd.tracing import traced, wrapped, described, loss_of, net
import spmd

if {noise}:  # other work first
    import torch
    spmd.init()
    (torch.ones(3).to("xla") * 2).sum().item()
    traced(net("xla"), mesh=spmd.Mesh({{"fsdp": 16}}), batch=described(16))
model = wrapped()

def step(batch):
    loss = loss_of(model, batch)
    loss.backward()
    return loss * 2

print(traced(model).fingerprint)
print(spmd.trace(step, described(), model=model).fingerprint)
"""


def test_fingerprints_elsewhere(run_script, reference, tmp_path, request):
    root = str(request.config.rootpath)
    first = run_script(SCRIPT.format(padding="", noise=False), root)
    assert first.rc == 0, first.stderr
    padding = "# another line\n" * 9
    second = run_script(SCRIPT.format(padding=padding, noise=True), root)
    assert second.rc == 0, second.stderr
    assert first.stdout.split() == second.stdout.split()
    assert first.stdout.split()[0] == reference.fingerprint


def test_the_program_runs_with_the_same_losses(tmp_path):
    torch.manual_seed(0)
    made = training()
    optimizer = spmd.prime_optimizer(made.optimizer)
    sync()
    program = traced(made.model).save(tmp_path / "step.spmd")
    torch_xla_seed(7)
    runner = Program.load(program).runner("cpu")
    state = dict(made.model.state_dict())
    for name, parameter in made.model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            state[f"optimizer.{key}[{name}]"] = value
    known = {v.name for v in runner.program.inputs}
    host = {n: t.detach().cpu().clone() for n, t in state.items() if n in known}
    runner.put({**host, "rng": np.int64(7)}, partial=True)
    ours = [
        runner.step({"batch": batch_of(i % 4)}, learning_rate=0.01)["output"].item()
        for i in range(5)
    ]
    theirs = [float(loss[0]) for loss in run_lazily(made, 5)]
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert ours[-1] < ours[0]
    kept = runner.state_dict()
    for name, parameter in made.model.named_parameters():
        torch.testing.assert_close(
            kept[name], parameter.detach().cpu(), atol=1e-4, rtol=0
        )


def test_other_meshes_than_the_models():
    with pytest.raises(
        ValueError,
        match=r"embed.weight \[32, 16\] is split on Mesh\(fsdp=8\), but the program is "
        r"for Mesh\(fsdp=16\)",
    ):
        traced(wrapped(), described(16), mesh=Mesh({"fsdp": 16}))
    x = torch.ones(8, 2, device="meta")
    spmd.mark_sharding(x, Mesh({"data": 4}), ("data", None))
    with pytest.raises(ValueError, match=r"x \[8, 2\] is split on Mesh\(data=4\)"):
        spmd.trace(lambda x: x * 2, x, mesh=MESH)

    def step(x):
        return spmd.mark_sharding(x * 2, POD, (None, None), name="double")

    with pytest.raises(ValueError, match=r"double \[8, 2\] is split on .*fsdp=512"):
        spmd.trace(step, torch.ones(8, 2), mesh=MESH)


def test_another_view_of_the_mesh_inside():
    experts = Mesh({"expert": 8})

    def step(x):
        return spmd.mark_sharding(x * 2, experts, ("expert", None)) + 1

    program = spmd.trace(step, torch.ones(8, 2), mesh=MESH)
    assert program.annotations == ()
    assert "[8,1]" in module_text(program.module)


def test_meshes_of_torch_xla():
    import torch_xla.distributed.spmd as xs

    theirs = xs.Mesh(np.arange(8), (8,), ("fsdp",))
    assert traced(net(), mesh=theirs) == traced(net(), mesh=MESH)


@pytest.mark.parametrize("step", [lambda x: None, lambda x: x, lambda x: 3])
def test_steps_that_compute_nothing(step):
    with pytest.raises(ValueError, match=r"neither returns a tensor that it computes"):
        spmd.trace(step, torch.ones(8), mesh=MESH)
