"""Lookups in a table whose columns are split as the batch is."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import profiling
import spmd
from spmd import Mesh
from spmd._vocab.columns import exchange_of
from tests.on_device import sync
from tests.spmd.same_as_torch import random

FLAT = Mesh({"fsdp": 8})
COPIES = Mesh.hybrid(ici={"fsdp": 4}, dcn={"replica": 2})
HOSTS = Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2})
ROWS, COLUMNS, BATCH, SEQ = 33, 16, 16, 6


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(ROWS, shape, generator=torch.Generator().manual_seed(0))


def split(table, at, mesh, *, columns=(None, "fsdp"), at_spec=None):
    weight = nn.Parameter(table.to("xla"))
    spmd.mark_sharding(weight, mesh, columns)
    at_spec = at_spec or (mesh.data_axes, *[None] * (at.ndim - 1))
    return weight, spmd.mark_sharding(at.to("xla"), mesh, at_spec)


@pytest.mark.parametrize(
    "shape", [(BATCH, SEQ), (BATCH,), (BATCH, 2, 3), (BATCH, 4 * SEQ)], ids=str
)
@pytest.mark.parametrize("mesh", [FLAT, COPIES], ids=repr)
def test_values_and_gradients_are_torchs(mesh, shape):
    table, at = random(ROWS, COLUMNS), ids(*shape)
    grad = random(*shape, COLUMNS)
    own = table.clone().requires_grad_()
    wanted = F.embedding(at, own, padding_idx=2)
    wanted.backward(grad)
    weight, given = split(table, at, mesh)
    exchange = exchange_of(weight, given)
    assert exchange is not None
    assert exchange.gathers == (at.numel() > 8 * ROWS)
    with spmd.sharding_preserving():
        found = F.embedding(given, weight, padding_idx=2)
        found.backward(grad.to("xla"))
    sync()
    assert torch.equal(found.detach().cpu(), wanted.detach())
    torch.testing.assert_close(weight.grad.cpu(), own.grad, rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("gathers", [False, True], ids=["exchanged", "gathered"])
def test_second_derivative(gathers):
    seq = 4 * SEQ if gathers else SEQ
    table, at = random(ROWS, COLUMNS), ids(BATCH, seq)
    factor = random(BATCH, seq, COLUMNS)

    def second(table, at, factor):
        found = (F.embedding(at, table, padding_idx=1) * factor).tanh().sum()
        (first,) = torch.autograd.grad(found, table, create_graph=True)
        return torch.autograd.grad(first.square().sum(), table)[0]

    wanted = second(table.double().requires_grad_(), at, factor.double())
    weight, given = split(table, at, COPIES)
    exchange = exchange_of(weight, given)
    assert exchange is not None and exchange.gathers == gathers
    with spmd.sharding_preserving():
        found = second(weight, given, factor.to("xla")).cpu()
    torch.testing.assert_close(found.double(), wanted, rtol=0.0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*does not divide over")
@pytest.mark.parametrize(
    "specs",
    [
        {"columns": ("fsdp", None)},
        {"columns": (None, None)},
        {"at_spec": (None, None)},
        {"at_spec": (("fsdp", "replica"), None)},  # the columns' axis is not the last
        {"at_spec": ("replica", "fsdp")},
    ],
    ids=str,
)
def test_what_is_left_to_the_partitioner(specs):
    assert (
        exchange_of(*split(random(ROWS, COLUMNS), ids(8, 8), COPIES, **specs)) is None
    )


@pytest.mark.filterwarnings("ignore:.*does not divide over")
@pytest.mark.parametrize(("rows", "columns"), [(12, 16), (16, 18)])
def test_sizes_that_do_not_divide(rows, columns):
    assert exchange_of(*split(random(ROWS, columns), ids(rows, 2), COPIES)) is None


def test_ids_that_nobody_annotated():
    weight, _ = split(random(ROWS, COLUMNS), ids(8, 2), COPIES)
    assert exchange_of(weight, ids(8, 2).to("xla")) is None


@pytest.mark.parametrize(
    ("mesh", "target"), [(COPIES, "cpu:8"), (HOSTS, "h100:2x8")], ids=str
)
def test_rows_are_exchanged_inside_a_host(mesh, target):
    """Once forward and once backward, and the gradient is reduced over replica."""
    with spmd.meta_parameters():
        model = nn.Embedding(512, 128)
    spmd.mark_sharding(model.weight, mesh, (None, "fsdp"), grad=(None, "fsdp"))

    def step(at: torch.Tensor) -> torch.Tensor:
        loss = model(at).sin().sum()
        loss.backward()
        return loss

    at = torch.empty(mesh.size, 64, dtype=torch.int64, device="meta")
    batch_spec = (mesh.data_axes, None)
    program = spmd.trace(step, at, model=model, mesh=mesh, batch_spec=batch_spec)
    found = profiling.compile(program, target).collectives
    moved = Counter((c.kind, c.axes) for c in found if c.dtype == "f32")
    assert moved["all-to-all", ("fsdp",)] == 2
    assert moved["all-reduce", ("replica",)] == 1
    of_rows = sum(c.wire_bytes for c in found if c.kind == "all-to-all")
    ways = mesh.axis_size("fsdp")
    assert of_rows == 2 * 64 * 128 * 4 * (ways - 1) // ways
    assert not any(c.kind == "all-gather" for c in found if c.dtype == "f32")
