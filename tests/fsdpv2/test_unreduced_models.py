"""Micro-batches of Hugging Face models: what their gradients are, and send."""

import copy

import pytest

import profiling
import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from spmd._auto.plan import auto_plan
from tests.fsdpv2.layers import check_close
from tests.on_device import sync
from tests.spmd.hf_models import CASES

MESH = Mesh({"replica": 2, "fsdp": 4})
SEQUENCE = Mesh({"fsdp": 2, "tensor": 4})
VOCABULARY = Mesh({"replica": 2, "fsdp": 2, "tensor": 2})
ROWS = 32
NAMES = ["gpt2", "gemma3", "llama", "bert", "falcon", "vit"]
EXPERTS = ("mixtral", "qwen3-moe")  # have tests of their own
MORE = [n for n in CASES if n not in (*NAMES, *EXPERTS)]
SLOWLY = [pytest.param(n, MESH, id=n, marks=pytest.mark.slow) for n in MORE]


def batch_of(name):
    batch = CASES[name].batch()
    return {k: v.repeat(ROWS // len(v), *[1] * (v.ndim - 1)) for k, v in batch.items()}


def wrapped(module, mesh):
    """With a vocabulary split over ``tensor``, or a sequence, as the mesh says."""
    plan = None
    if "tensor" in mesh.axis_names:
        sequence = mesh == SEQUENCE
        options = {"sequence_parallel": sequence, "min_shard_elements": 1}
        plan = auto_plan(module, mesh, **options)
    return FSDPv2(module, mesh, min_shard_elements=1, plan=plan)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        *(pytest.param(n, MESH, id=n) for n in NAMES),
        *SLOWLY,
        pytest.param("llama", SEQUENCE, id="llama-sequence"),
        pytest.param("bert", SEQUENCE, id="bert-sequence"),
        pytest.param("llama", VOCABULARY, id="llama-vocabulary"),
        pytest.param("bert", VOCABULARY, id="bert-vocabulary"),  # padded, and tied
    ],
)
def test_gradients_are_the_big_batchs(name, mesh):
    plain = CASES[name].build()
    model = wrapped(copy.deepcopy(plain), mesh)
    loss = plain(**batch_of(name)).loss
    loss.backward()
    batch = spmd.shard_batch(batch_of(name), mesh)
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


def moved(name, num, mesh=MESH):
    """What a step moves, but not for the loss."""
    with spmd.meta_parameters():
        module = CASES[name].build()
    model = wrapped(module, mesh)

    def step(batch):
        for micro in model.microbatches(batch, num):
            (model(**micro).loss / num).backward()
        return [p.grad for p in model.parameters()]

    spec = (mesh.data_axes,)
    program = spmd.trace(step, batch_of(name), model=model, batch_spec=spec)
    found = profiling.compile(program, "cpu:8").collectives
    return [c for c in found if c.role != "scalar"]


def reduced(name, num, mesh=MESH):
    """Bytes of all reductions of a step, but those of the loss."""
    found = moved(name, num, mesh)
    return sum(c.step_wire_bytes for c in found if "reduce" in c.kind)


# Of a table of positions all rows are reduced, not only those that a batch has.
MOST = {"bert": 1.02}


@pytest.mark.parametrize(
    "name", [*NAMES, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)]
)
def test_four_are_reduced_in_the_bytes_of_one(name):
    """XLA's CPU compiler joins reductions, so their number says nothing."""
    assert 0 < reduced(name, 4) <= MOST.get(name, 1.0) * reduced(name, 1)


def test_a_table_in_pieces_is_reduced_once():
    """That of one batch is not: columns of its tokens are exchanged."""
    assert reduced("llama", 4, VOCABULARY) == reduced("llama", 2, VOCABULARY)


def gathered(num):
    """Bytes of what is gathered of a sequence that is split."""
    return sum(
        c.step_wire_bytes
        for c in moved("llama", num, SEQUENCE)
        if c.kind == "all-gather" and c.role == "activation"
    )


def test_a_sequence_is_gathered_as_often_as_for_one_batch():
    """The gradients of weights take what the layers gathered."""
    assert 0 < gathered(4) <= gathered(1)


def added_up(num):
    """Bytes of reductions of gradients, a sequence being split."""
    return sum(
        c.step_wire_bytes
        for c in moved("llama", num, SEQUENCE)
        if c.role == "gradient reduction"
    )


def test_norms_of_a_split_sequence_are_reduced_once():
    """Also where nobody says how their gradients are split."""
    assert 0 < added_up(4) <= added_up(1)
