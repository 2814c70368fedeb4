"""Findings in a step whose layers hold their parameters stacked."""

import functools

import pytest
import torch

import profiling
import spmd
from fsdpv2 import FSDPv2
from profiling._findings.edit import changed
from profiling._findings.end_plan import plan_of
from spmd import Mesh
from tests.fsdpv2.layers import Stack, loss_of

MESH = Mesh({"fsdp": 8})
WIDTH = 1024  # 8 layers of [2048, 1024] are large enough to be told of


def step(whole=()):
    with spmd.meta_parameters():
        module = Stack(num_layers=8, width=WIDTH)
    for layer in module.layers:
        for name in whole:
            spmd.mark_sharding(layer.get_parameter(name), MESH, (None, None))
    model = FSDPv2(module, MESH, scan_layers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(batch):
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    batch = torch.zeros(64, 32, dtype=torch.int64)
    return spmd.trace(run, batch, model=model, optimizer=optimizer)


@functools.cache
def replicated():
    program = step(whole=("up.weight",))
    schedule = profiling.compile(program, "h100:1x8")
    return program, schedule, profiling.explain(program, schedule)


def test_a_large_parameter_of_all_layers_is_split_on_a_dim_of_a_layer():
    program, schedule, findings = replicated()
    found = next(f for f in findings if f.kind == "large-replicated")
    assert found.where == "layers.*.up.weight"
    assert found.held_bytes >= 8 * 2 * WIDTH * WIDTH * 4
    assert found.fix is not None
    assert found.fix.parameters == {"layers.*.up.weight": (None, "fsdp", None)}
    assert 'spmd.Plan({"layers.*.up.weight": ("fsdp", None)})' in found.fix.code
    after = profiling.compile(changed(program, found.fix.change), "h100:1x8")
    saved = schedule.memory.peak_bytes - after.memory.peak_bytes
    assert saved >= 7 * 2 * WIDTH * WIDTH * 4  # gathered layer by layer, in the loop
    gathers = [c for c in after.collectives if "up.weight" in str(c.moved[0].tensor)]
    assert gathers[0].kind == "all-gather" and gathers[0].num_runs == 8


def test_the_plan_of_a_step_is_that_of_one_layer():
    rules = {r.pattern: r.spec for r in plan_of(step()).rules}
    assert rules["layers.*.down.weight"] == (None, "fsdp")
    model = FSDPv2(Stack(num_layers=2), MESH, scan_layers=True)
    for parameter in model.parameters():
        spmd.clear_sharding(parameter)
    with pytest.warns(UserWarning, match="4 parameters .* match no pattern"):
        spmd.shard_module(model, MESH, plan_of(step()))
    down = model.get_parameter("layers.*.down.weight")
    assert spmd.get_sharding(down).spec == (None, None, "fsdp")
