"""Fused projections that are held apart: parity, and what a compiled block moves."""

from collections import Counter

import pytest
import torch

import profiling
import spmd
from spmd import Plan
from spmd._fused.fused import split_fused
from tests.on_device import sync
from tests.spmd import fused_block
from tests.spmd.fused_block import BATCH, DIM, SEQ, Block, block, check_same, parts

X = (BATCH, SEQ, DIM)
TARGETS = ["cpu:8", "h100:1x8"]


@pytest.fixture(scope="module", params=[4, 2], ids=["kv_4", "kv_2"])
def kv_heads(request):
    return request.param


@pytest.fixture(scope="module")
def program(kv_heads):
    sync()
    return fused_block.traced(block(kv_heads), fused_block.tokens(*X))


def test_loss_and_gradients(kv_heads, program):
    torch.manual_seed(0)
    model = Block(kv_heads)
    split_fused(model, parts(kv_heads))
    check_same(program, model, fused_block.tokens(*X))


def test_names(kv_heads, program):
    names = {v.name for v in program.inputs if v.role == "parameter"}
    assert {"qkv.q.weight", "qkv.k.bias", "gate_up.up.weight"} <= names
    assert "qkv.weight" not in names


@pytest.mark.parametrize("target", TARGETS)
def test_a_block_reduces_twice_each_way(kv_heads, program, target):
    schedule = profiling.compile(program, target)
    moved = Counter(fused_block.moved(schedule))
    forward = {
        "forward o all-reduce tensor": 1,
        "forward down all-reduce tensor": 1,
    }
    found = {k: n for k, n in moved.items() if k.startswith("forward")}
    if kv_heads == 4:
        assert found == forward
    else:  # what few key and value heads are whole for: theirs, not the query's
        gathered = Counter({k: n for k, n in found.items() if "all-gather" in k})
        assert found == {**forward, **gathered} and gathered.total() == 2
        shapes = {
            each.shape
            for collective in schedule.collectives
            for each in collective.moved
            if collective.kind == "all-gather" and each.role == "activation"
        }
        assert not any(
            f",{DIM // 4}]" in s and s.startswith("f32[2,8,") for s in shapes
        )


@pytest.mark.parametrize("kv_heads", [4], ids=["kv_4"], scope="module", indirect=True)
@pytest.mark.parametrize("target", TARGETS)
def test_its_gradient_does_too(kv_heads, program, target):
    schedule = profiling.compile(program, target)
    found = [m for m in fused_block.moved(schedule) if m.startswith("backward")]
    # Of one input's three products the H100's compiler adds up before it reduces.
    wanted = {"cpu:8": {"qkv": 3, "gate_up": 2}, "h100:1x8": {"qkv": 1, "gate_up": 1}}
    parts_of = Counter(m.split()[1].partition(".")[0] for m in found)
    assert parts_of == wanted[target]
    assert all(m.endswith(" all-reduce tensor") for m in found)


def test_an_annotation_of_the_whole_output_is_one_of_its_parts():
    model = block(4)
    for name in ("qkv", "gate_up"):
        plan = Plan({}, outputs={name: fused_block.COLUMNS})
        spmd.shard_module(model, fused_block.MESH, plan)
    program = fused_block.traced(model, fused_block.tokens(*X))
    found = {a.module: a.spec for a in program.annotations}
    assert found["qkv"] == fused_block.COLUMNS
    assert found["qkv.q"] == fused_block.COLUMNS


@pytest.mark.slow
def test_without_it_the_block_moves_its_activations():
    program = fused_block.traced(block(4, fused=True), fused_block.tokens(*X))
    kinds = {
        m.split()[-2] for m in fused_block.moved(profiling.compile(program, "cpu:8"))
    }
    assert {"all-to-all", "collective-permute"} <= kinds
