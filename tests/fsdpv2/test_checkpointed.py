"""Models that compute their layers again by themselves, as Hugging Face's do."""

import copy

import pytest
import torch

import profiling
import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from spmd import Mesh
from tests.fsdpv2.layers import check_close
from tests.fsdpv2.test_unreduced_models import batch_of, wrapped
from tests.on_device import sync
from tests.spmd.hf_models import CASES

MESH = Mesh({"replica": 2, "fsdp": 4})
SEQUENCE = Mesh({"fsdp": 2, "tensor": 4})


def build(name, *, again=True, **options):
    model = CASES[name].build()
    if again:
        model.activation_checkpointing_enable(options or None)
    return model.train()


@pytest.mark.parametrize(
    ("name", "mesh", "num"),
    [("llama", MESH, 1), ("bert", MESH, 2), ("vit", MESH, 2), ("llama", SEQUENCE, 2)],
)
def test_gradients_are_the_big_batchs(name, mesh, num):
    plain = build(name, again=False)
    model = wrapped(build(name, use_reentrant=num > 1), mesh)
    loss = plain(**batch_of(name)).loss
    loss.backward()
    batch = spmd.shard_batch(batch_of(name), mesh)
    losses = []
    with spmd.sharding_preserving():
        for micro in model.microbatches(batch, num):
            part = model(**micro).loss / num
            part.backward()
            losses.append(part.detach())
    sync()
    found = {n: p.grad.cpu() for n, p in model.named_parameters()}
    want = {n: p.grad for n, p in plain.named_parameters()}
    noise = [n for n, g in want.items() if g.abs().max() < 1e-6]  # of keys' biases
    for name in noise:
        del found[name], want[name]
    check_close({"loss": sum(losses).cpu(), **found}, {"loss": loss.detach(), **want})


OPTIONS = [
    {},
    {"mixed_precision": MixedPrecision(torch.bfloat16, reduce=torch.float32)},
    {"auto_wrap_policy": {"LlamaDecoderLayer"}},
    {"scan_layers": True},
]


def compiled(num, *, again=True, **options):
    with spmd.meta_parameters():
        module = build("llama", again=again)
    model = FSDPv2(module, MESH, min_shard_elements=1, **options)

    def step(batch):
        for micro in model.microbatches(batch, num):
            (model(**micro).loss / num).backward()
        return [p.grad for p in model.parameters()]

    batch = batch_of("llama")
    program = spmd.trace(step, batch, model=model, batch_spec=(MESH.data_axes,))
    return profiling.compile(program, "cpu:8")


def reduced(schedule):
    """Bytes of all reductions of a step, but those of the loss."""
    found = [c for c in schedule.collectives if c.role != "scalar"]
    return sum(c.step_wire_bytes for c in found if "reduce" in c.kind)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_four_are_reduced_in_the_bytes_of_one(options):
    assert 0 < reduced(compiled(4, **options)) <= reduced(compiled(1, **options))


@pytest.mark.parametrize("options", OPTIONS[:1] + OPTIONS[3:], ids=str)
def test_it_is_what_remat_does(options):
    """Collectives and memory are alike."""
    mine, ours = compiled(1, **options), compiled(1, again=False, remat="full")
    if options:
        ours = compiled(1, again=False, **options)

    def of(schedule):
        found = sorted((c.kind, c.step_wire_bytes) for c in schedule.collectives)
        return found, schedule.memory.temp_bytes

    assert of(mine) == of(ours)


def test_compiled_steps_train_as_the_unsharded_model():
    def train(model, batch, run):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(batch):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        step = run(step, model=model, optimizer=optimizer)
        return [step(batch).item() for _ in range(3)]

    plain = build("llama", again=False)
    model = FSDPv2(copy.deepcopy(plain), MESH)
    model.module.activation_checkpointing_enable()
    want = train(plain, batch_of("llama"), lambda step, **_: step)
    batch = spmd.shard_batch(batch_of("llama"), MESH)
    assert train(model, batch, spmd.compile_step) == pytest.approx(want, abs=2e-5)
