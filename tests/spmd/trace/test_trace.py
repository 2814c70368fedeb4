"""A traced step is the same wherever its data is, and says what it takes and gives."""

import pytest
import torch
import torch_xla.debug.metrics as metrics
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from spmd._program.stablehlo import module_text
from tests.on_device import sync
from tests.spmd.tracing import (
    DIM,
    MESH,
    adamw,
    batch_of,
    described,
    net,
    step_of,
    traced,
    wrapped,
)

POD = Mesh({"fsdp": 512, "tensor": 8})
SLICES = Mesh.hybrid(ici={"fsdp": 256}, dcn={"replica": 16})


@pytest.fixture(scope="module")
def reference():
    return traced(wrapped("meta"))


@pytest.mark.parametrize("where", ["xla", "cpu", "meta"])
def test_the_same_program_wherever_the_model_is(where, reference):
    assert traced(wrapped(where)) == reference


@pytest.mark.parametrize("where", ["xla", "cpu", "meta"])
def test_models_without_annotations(where):
    program = traced(net(where), mesh=MESH)
    assert program == traced(net("meta"), mesh=MESH)
    assert all(v.spec is None for v in program.inputs if v.role == "parameter")


@pytest.mark.parametrize("where", ["xla", "cpu"])
def test_with_state_of_its_own(where, reference):
    model = wrapped(where)
    optimizer = adamw(model)
    step = step_of(model, optimizer)
    step(spmd.shard_batch(batch_of(), MESH))
    sync()
    program = spmd.trace(step, described(), model=model, optimizer=optimizer)
    assert program == reference


def test_cpu_models_with_state_of_their_own():
    model = net("cpu")
    optimizer = adamw(model)
    step = step_of(model, optimizer)
    step(batch_of())
    program = spmd.trace(step, described(), model=model, optimizer=optimizer, mesh=MESH)
    assert program == traced(net("meta"), mesh=MESH)


@pytest.mark.parametrize(
    "batch",
    [
        batch_of(),
        {n: t.numpy() for n, t in batch_of().items()},
        {n: t.to("meta") for n, t in batch_of().items()},
    ],
    ids=["cpu", "numpy", "meta"],
)
def test_the_same_program_wherever_the_batch_is(batch, reference):
    assert traced(wrapped(), batch) == reference


def test_batches_on_the_devices(reference):
    assert traced(wrapped(), spmd.shard_batch(batch_of(), MESH)) == reference
    moved = {n: t.to("xla") for n, t in batch_of().items()}
    assert traced(wrapped(), moved) == reference


@pytest.mark.parametrize("mesh", [POD, SLICES], ids=repr)
def test_meshes_of_any_size(mesh):
    program = traced(wrapped(mesh=mesh), described(mesh.size))
    assert program.mesh == mesh
    assert program.num_devices == 4096
    text = module_text(program.module)
    assert "<=[4096]" in text or "<=[16,256]" in text or "<=[512,8]" in text
    assert max(map(len, text.splitlines())) < 20_000  # no list of 4096 devices


def test_a_model_larger_than_any_memory():
    with spmd.meta_parameters():
        model = nn.Linear(2**20, 2**18, bias=False)
    model = FSDPv2(model, POD)
    optimizer = adamw(model)

    def step(x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.empty(4096, 2**20, device="meta")
    program = spmd.trace(step, x, model=model, optimizer=optimizer)
    assert program.inputs[-1].size_bytes >= 0
    assert sum(v.size_bytes for v in program.inputs) > 3 * 2**40


def test_nothing_is_executed():
    names = ("CompileTime", "ExecuteTime", "ExecuteReplicatedTime")

    def counts():
        return [metrics.metric_data(n) and metrics.metric_data(n)[0] for n in names]

    model = wrapped("xla")
    sync()
    before = counts()
    traced(model)
    assert counts() == before


def test_only_scalars_are_kept(reference):
    sizes = {n: a.size for n, a in reference.constants.items()}
    assert sizes.pop("scale") == DIM
    assert set(sizes.values()) == {1}
    assert len(sizes) < 16
