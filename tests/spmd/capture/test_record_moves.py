"""State that takes over data: lazily, in a compiled step and in a program."""

import pytest
import torch
from torch import nn

import spmd
from spmd import CaptureError
from tests.on_device import sync
from tests.spmd.tracing import MESH

SHAPE = (8, 4)


class Two(nn.Module):
    """A parameter and two buffers of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(SHAPE))
        self.register_buffer("b", torch.full(SHAPE, 2.0))
        self.register_buffer("c", torch.full(SHAPE, 3.0))


def swap(model, x):
    model.b, model.c = model.c, model.b
    return (model.b * 2 + model.c + x).sum()


def take_the_batch(model, x):
    model.b = model.b * 0 + x
    return model.b.sum()


def same_value_twice(model, x):
    with torch.no_grad():
        value = model.a + model.b + model.c + x
        model.a.copy_(value)
        model.b.copy_(value)
    return x.sum()


def pass_on(model, x):
    model.b, model.c = (model.b + model.c) * 1, model.b
    return x.sum()


STEPS = [swap, take_the_batch, same_value_twice, pass_on]


def made():
    model = spmd.to_device(Two())
    for tensor in (model.a, model.b, model.c):
        spmd.mark_sharding(tensor, MESH, ("fsdp", None))
    return model


def batch_of(i):
    return spmd.shard_batch(torch.full(SHAPE, i + 1.0), MESH)


def trained(step, runs):
    """Results of three steps and the state after them."""
    model = made()
    call = runs(lambda x: step(model, x), model)
    results = []
    for i in range(3):
        results.append(call(batch_of(i)))
        sync()
    return [r.item() for r in results], [
        t.cpu().tolist() for t in (model.a, model.b, model.c)
    ]


@pytest.mark.parametrize("step", STEPS)
def test_a_compiled_step_does_what_lazy_execution_does(step):
    lazy = trained(step, lambda fn, model: fn)
    compiled = trained(step, lambda fn, model: spmd.compile_step(fn, model=model))
    assert compiled == lazy


@pytest.mark.parametrize("step", STEPS)
def test_so_does_a_program(step):
    results, (a, b, c) = trained(step, lambda fn, model: fn)
    model = made()
    program = spmd.trace(lambda x: step(model, x), batch_of(0), model=model)
    runner = program.runner("cpu")
    state = {"a": model.a, "b": model.b, "c": model.c}
    known = {v.name for v in program.inputs}
    runner.put({n: t.detach().cpu() for n, t in state.items() if n in known})
    found = [runner.step(batch_of(i).cpu())["output"].item() for i in range(3)]
    assert found == pytest.approx(results)
    wanted = {"a": a, "b": b, "c": c}
    for value in program.outputs:
        if value.updates is not None:
            assert runner.get(value.name).torch().tolist() == wanted[value.name]


def test_state_that_becomes_other_state():
    def step(x):
        model.b = model.b + x
        model.c = model.b
        return x.sum()

    model = made()
    match = r"takes c away, or makes it the same tensor .*: c = other.clone\(\)"
    with pytest.raises(CaptureError, match=match):
        spmd.trace(step, batch_of(0), model=model)
    with pytest.raises(CaptureError, match=match):
        spmd.compile_step(step, model=model)(batch_of(0))
    assert model.b is not model.c
    assert model.b.cpu().eq(2).all()


def test_batches_that_the_step_writes_to():
    def step(x):
        x.mul_(2)
        return (model.a * x).sum()

    model = made()
    x = batch_of(0)
    assert spmd.compile_step(step, model=model)(x).item() == 64
    assert x.cpu().eq(1).all()
