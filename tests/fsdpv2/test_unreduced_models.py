"""Micro-batches of Hugging Face models: what their gradients are, and send."""

import copy

import pytest

import profiling
import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from tests.fsdpv2.layers import check_close
from tests.on_device import sync
from tests.spmd.hf_models import CASES

MESH = Mesh({"replica": 2, "fsdp": 4})
ROWS = 32
NAMES = ["gpt2", "gemma3", "llama", "bert", "falcon", "vit"]


def batch_of(name):
    batch = CASES[name].batch()
    return {k: v.repeat(ROWS // len(v), *[1] * (v.ndim - 1)) for k, v in batch.items()}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_big_batchs(name):
    plain = CASES[name].build()
    model = FSDPv2(copy.deepcopy(plain), MESH, min_shard_elements=1)
    loss = plain(**batch_of(name)).loss
    loss.backward()
    batch = spmd.shard_batch(batch_of(name), MESH)
    losses = []
    with spmd.sharding_preserving():
        for micro in model.microbatches(batch, 2):
            part = model(**micro).loss / 2
            part.backward()
            losses.append(part.detach())
    sync()
    found = {n: p.grad.cpu() for n, p in model.named_parameters()}
    want = {n: p.grad for n, p in plain.named_parameters()}
    noise = [n for n, g in want.items() if g.abs().max() < 1e-6]  # of keys' biases
    for name in noise:
        del found[name], want[name]
    check_close({"loss": sum(losses).cpu(), **found}, {"loss": loss.detach(), **want})


def reduced(name, num):
    """Bytes of all reductions of a step, but those of the loss."""
    with spmd.meta_parameters():
        module = CASES[name].build()
    model = FSDPv2(module, MESH, min_shard_elements=1)

    def step(batch):
        for micro in model.microbatches(batch, num):
            (model(**micro).loss / num).backward()
        return [p.grad for p in model.parameters()]

    spec = (MESH.data_axes,)
    program = spmd.trace(step, batch_of(name), model=model, batch_spec=spec)
    return sum(
        c.wire_bytes * c.num_runs
        for c in profiling.compile(program, "cpu:8").collectives
        if "reduce" in c.kind and c.role != "scalar"
    )


# Of a table of positions all rows are reduced, not only those that a batch has.
@pytest.mark.parametrize(
    ("name", "most"), [(n, 1.02 if n == "bert" else 1.0) for n in NAMES]
)
def test_four_are_reduced_in_the_bytes_of_one(name, most):
    """XLA's CPU compiler joins reductions, so their number says nothing."""
    assert reduced(name, 4) <= most * reduced(name, 1)
