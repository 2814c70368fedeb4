"""A vocabulary that does not divide by the axis: padded by XLA, and otherwise the same.

Tied weights, so that the embedding, the head and both parts of the gradient are in it.
"""

from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import profiling
import spmd
from spmd import Plan
from spmd._marking.mark import check_even
from tests.on_device import sync
from tests.spmd.fused_block import COLUMNS, MESH, WHOLE, on_meta, with_gradients

ROWS, SEQ, DIM = 4, 6, 16
EVEN, UNEVEN = 64, 51  # rows of a shard: 16 four times; 13, 13, 13 and 12


class Model(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, DIM)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)))


def loss_of(model, ids):
    logits = model(ids)
    return F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def sharded(vocab):
    model = on_meta(lambda: Model(vocab))
    plan = Plan(
        {"embed.weight": ("tensor", "fsdp"), "norm.*": (None,)},
        outputs={"embed": WHOLE, "norm": WHOLE, "head": COLUMNS},
    )
    spmd.shard_module(model, MESH, plan)
    with_gradients(model)
    return model


def ids_of(vocab):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(vocab, (ROWS, SEQ), generator=generator)
    ids[0, :2] = torch.tensor([vocab - 1, 0])  # the last row, beside the padding
    return ids


def traced(vocab):
    model = sharded(vocab)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)

    def step(ids):
        loss = loss_of(model, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids, spec = ids_of(vocab), ("fsdp", None)
    return spmd.trace(step, ids, model=model, optimizer=optimizer, batch_spec=spec)


@pytest.fixture(scope="module")
def programs():
    sync()
    with pytest.warns(UserWarning) as warned:
        uneven = traced(UNEVEN)
    found = {str(w.message).partition(";")[0] for w in warned}
    assert found == {
        "embed.weight [51, 16]: dim 0 of size 51 does not divide over 'tensor' (4 "
        "shards)",
        "output of head [4, 6, 51]: dim 2 of size 51 does not divide over 'tensor' (4 "
        "shards)",
    }
    return {EVEN: traced(EVEN), UNEVEN: uneven}


@pytest.mark.parametrize("vocab", [EVEN, UNEVEN])
def test_loss_and_gradients(programs, vocab):
    """The first step of SGD with momentum leaves the gradients as its momentum."""
    torch.manual_seed(0)
    model = Model(vocab)
    loss = loss_of(model, ids_of(vocab))
    loss.backward()
    runner = programs[vocab].runner("cpu")
    state = {n: p.detach() for n, p in model.named_parameters()}
    for value in runner.program.inputs:
        if value.role == "optimizer":
            state[value.name] = np.zeros(value.shape, value.dtype)
    runner.put(state, partial=True)
    got = runner.step({"ids": ids_of(vocab)}, learning_rate=1.0)
    assert np.allclose(got["output"], loss.item(), rtol=1e-6)
    for name, parameter in model.named_parameters():
        wanted = parameter.grad.numpy()
        found = np.asarray(runner.get(f"optimizer.momentum_buffer[{name}]"))
        assert found.shape == wanted.shape
        assert abs(found - wanted).max() <= 2e-6 * abs(wanted).max(), name


@pytest.mark.parametrize("target", ["cpu:8", "h100:1x8"])
def test_the_same_over_the_axis_as_of_an_even_one(programs, target):
    """Over the other one the compiler gathers the table or the ids, by their sizes."""
    found = []
    for vocab in (EVEN, UNEVEN):
        schedule = profiling.compile(programs[vocab], target)
        moved = [
            (m.phase, m.module, m.role, c.kind)
            for c in schedule.collectives
            for m in c.moved
            if "tensor" in c.axes
        ]
        found.append(Counter(moved))
    assert found[0] == found[1]


@pytest.mark.parametrize("target", ["cpu:8", "h100:1x8"])
def test_logits_stay_split(programs, target):
    schedule = profiling.compile(programs[UNEVEN], target)
    sizes = [m.operand_bytes for c in schedule.collectives for m in c.moved]
    logits = ROWS // 2 * SEQ * -(-UNEVEN // 4) * 4
    table = -(-UNEVEN // 4) * DIM * 4
    assert max(sizes) == table
    assert logits not in sizes and 4 * logits not in sizes


def test_the_padding_is_said():
    """GPT-2's: 50257 over 4 are 12565 each, which is 3 rows more."""
    table = torch.empty(50257, 768, device="meta")
    with pytest.warns(UserWarning, match=f"XLA pads {3 * 768 * 4} bytes"):
        check_even(table, MESH, ("tensor", "fsdp"), "transformer.wte.weight")
