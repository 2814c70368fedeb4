"""Embedding lookups and their gradients, whole and in pieces, against torch."""

import pytest
import torch
import torch.nn.functional as F

import spmd
from spmd import Mesh
from tests.on_device import sync
from tests.spmd.same_as_torch import check_same, graph, random

MESH = Mesh({"fsdp": 2, "tensor": 4})
ROWS, COLUMNS = 33, 8


def ids(*shape, rows=ROWS):
    found = torch.randint(rows, shape, generator=torch.Generator())
    found[0] = 1  # looked up often
    return found


OPTIONS = {
    "plain": {},
    "padding": {"padding_idx": 1},
    "by frequency": {"scale_grad_by_freq": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", [(4, 6), (5,), (2, 3, 2)], ids=str)
def test_values_and_gradients(shape, options, dtype):
    def function(table, at):
        return F.embedding(at, table, **OPTIONS[options])

    text = check_same(function, random(ROWS, COLUMNS), ids(*shape), dtype=dtype)
    assert text.count(" gather(") + text.count(" scatter(") >= 2


SPECS = {
    "rows": ("tensor", None),
    "both": ("tensor", "fsdp"),
    "rows, on the batch's axis": ("fsdp", "tensor"),
    "rows, on both axes": (("fsdp", "tensor"), None),
    "columns": (None, "tensor"),
}


def lookup(table, spec, at, at_spec, grad, **options):
    """Result and gradient, and the graph that computes them, for a split table."""
    weight = torch.nn.Parameter(table.to("xla"))
    spmd.mark_sharding(weight, MESH, spec)
    at = spmd.mark_sharding(at.to("xla"), MESH, at_spec)
    with spmd.sharding_preserving():
        found = F.embedding(at, weight, **options)
        found.backward(grad.to("xla"))
    text = graph(found, weight.grad)
    sync()
    return found.detach().cpu(), weight.grad.cpu(), text


@pytest.mark.filterwarnings("ignore:.*does not divide over")
@pytest.mark.parametrize("rows", [32, 33, 3])
@pytest.mark.parametrize("at_spec", [("fsdp", None), ("fsdp", "tensor")], ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_split_tables(name, at_spec, rows):
    table, at, grad = random(rows, COLUMNS), ids(4, 8, rows=rows), random(4, 8, COLUMNS)
    own = table.clone().requires_grad_()
    wanted = F.embedding(at, own, padding_idx=2)
    wanted.backward(grad)
    given = (table, SPECS[name], at, at_spec, grad)
    found, gradient, text = lookup(*given, padding_idx=2)
    assert torch.equal(found, wanted)
    torch.testing.assert_close(gradient, own.grad, rtol=0.0, atol=2e-6)
    marks = text.count('custom_call_target="Sharding"')
    assert marks == (4 if name in ("rows", "both") else 0)


def test_ids_that_were_reshaped_are_known():
    """As Hugging Face's GPT-2 does with them."""
    weight = torch.nn.Parameter(random(32, COLUMNS).to("xla"))
    spmd.mark_sharding(weight, MESH, ("tensor", None))
    at = spmd.mark_sharding(ids(4, 8).clamp_max(31).to("xla"), MESH, ("fsdp", None))
    with spmd.sharding_preserving():
        text = graph(F.embedding(at.view(-1, 8), weight))
    assert text.count('custom_call_target="Sharding"') == 2


def test_second_derivative_of_a_split_table():
    table, at = random(32, COLUMNS), ids(4, 8).clamp_max(31)
    factor = random(4, 8, COLUMNS)

    def second(table, at, factor):
        found = (F.embedding(at, table, padding_idx=1) * factor).tanh().sum()
        (first,) = torch.autograd.grad(found, table, create_graph=True)
        return torch.autograd.grad(first.square().sum(), table)[0]

    wanted = second(table.double().requires_grad_(), at, factor.double())
    weight = torch.nn.Parameter(table.to("xla"))
    spmd.mark_sharding(weight, MESH, ("tensor", None))
    at = spmd.mark_sharding(at.to("xla"), MESH, ("fsdp", None))
    with spmd.sharding_preserving():
        found = second(weight, at, factor.to("xla")).cpu()
    torch.testing.assert_close(found.double(), wanted, rtol=0.0, atol=1e-4)


def test_sparse_gradients_are_refused():
    table, at = random(32, COLUMNS).to("xla"), ids(4).to("xla")
    with (
        spmd.sharding_preserving(),
        pytest.raises(ValueError, match=r"sparse=True for the table \[32, 8\]"),
    ):
        F.embedding(at, table, sparse=True)


def test_a_table_has_two_dims():
    from spmd._vocab_embedding import embedding

    with pytest.raises(ValueError, match=r"the table has shape \[2, 3, 4\]"):
        embedding(random(2, 3, 4).to("xla"), ids(4).to("xla"))
