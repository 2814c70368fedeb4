"""Embedding lookups and their gradients, whole and in pieces, against torch."""

import pytest
import torch
import torch.nn.functional as F

import profiling
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


HOSTS = Mesh.hybrid(ici={"fsdp": 2, "tensor": 2}, dcn={"replica": 2})


@pytest.mark.filterwarnings("ignore:.*does not divide over")
@pytest.mark.parametrize("shape", [(4, 8), (8,), (6, 8)], ids=str)
@pytest.mark.parametrize("sequence", [None, "tensor"])
def test_a_batch_that_is_split_over_hosts_too(sequence, shape):
    table, at = random(33, COLUMNS), ids(*shape)
    grad = random(*shape, COLUMNS)
    own = table.clone().requires_grad_()
    wanted = F.embedding(at, own, padding_idx=2)
    wanted.backward(grad)
    weight = torch.nn.Parameter(table.to("xla"))
    spmd.mark_sharding(weight, HOSTS, ("tensor", "fsdp"))
    at_spec = (("replica", "fsdp"), sequence)[: at.ndim]
    at = spmd.mark_sharding(at.to("xla"), HOSTS, at_spec)
    with spmd.sharding_preserving():
        found = F.embedding(at, weight, padding_idx=2)
        found.backward(grad.to("xla"))
    sync()
    assert torch.equal(found.detach().cpu(), wanted)
    torch.testing.assert_close(weight.grad.cpu(), own.grad, rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("target", ["cpu:8", "h100:1x8"])
def test_the_gradient_gathers_no_rows_of_other_hosts(target):
    """Columns are exchanged over fsdp; over replica there is the gradient alone."""
    with spmd.meta_parameters():
        model = torch.nn.Embedding(512, 128)
    plan = spmd.Plan({"weight": ("tensor", "fsdp")})
    spmd.shard_module(model, HOSTS, plan)

    def step(at):
        model(at).sin().sum().backward()
        return model.weight.grad

    at = torch.empty(8, 64, dtype=torch.int64, device="meta")
    given = {"mesh": HOSTS, "batch_spec": (("replica", "fsdp"), None)}
    program = spmd.trace(step, at, model=model, **given)
    found = profiling.compile(program, target).collectives
    far = [c for c in found if "replica" in c.axes]
    assert [(c.kind, c.role) for c in far] == [("all-reduce", "gradient reduction")]
    assert far[0].operand_bytes == 512 * 128 * 4 // 4


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
    from spmd._vocab.embedding import embedding

    with pytest.raises(ValueError, match=r"the table has shape \[2, 3, 4\]"):
        embedding(random(2, 3, 4).to("xla"), ids(4).to("xla"))
