"""What one block of a model under `auto_plan` moves, in the compiled program."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

import profiling
import spmd
from spmd import Mesh
from spmd._auto_plan import auto_plan
from tests.spmd.hf_models import CASES, HIDDEN, ROWS, SEQ

MESH = Mesh({"fsdp": 2, "tensor": 4})
DEFAULT = ("llama",)
PARALLEL = ("falcon", "falcon-groups")  # attention and MLP side by side, added up
PIECE = ROWS // 2 * SEQ * HIDDEN * 4 // 4  # bytes of [batch, seq, embed] on one device

MEGATRON = {("forward", "all-reduce"): 2, ("backward", "all-reduce"): 2}
MEGATRON_SEQUENCE = {
    (phase, kind): 2
    for phase in ("forward", "backward")
    for kind in ("all-gather", "reduce-scatter")
}


def marked(names):
    slow = pytest.mark.slow
    return [n if n in DEFAULT else pytest.param(n, marks=slow) for n in names]


@functools.cache
def schedule(name: str, layers: int, sequence: bool) -> profiling.Schedule:
    with spmd.meta_parameters():
        model = CASES[name].build(num_hidden_layers=layers)
    plan = auto_plan(model, MESH, sequence_parallel=sequence, min_shard_elements=1)
    spmd.shard_module(model, MESH, plan)

    def step(batch):
        loss = model(**batch).loss
        loss.backward()
        return loss

    batch = CASES[name].batch()
    program = spmd.trace(step, batch, model=model, mesh=MESH, batch_spec=("fsdp",))
    return profiling.compile(program, "h100:1x8")


def counts(name: str, layers: int, sequence: bool) -> Counter[tuple[str, ...]]:
    """Executions by phase, kind, role and axes."""
    found = Counter[tuple[str, ...]]()
    for c in schedule(name, layers, sequence).collectives:
        found[c.phase, c.kind, c.role, "+".join(c.axes)] += c.num_runs
    return found


def of_a_block(name: str, sequence: bool) -> Counter[tuple[str, ...]]:
    """What one layer more costs."""
    return counts(name, 2, sequence) - counts(name, 1, sequence)


def activations(name: str, sequence: bool) -> dict[tuple[str, str], int]:
    found = of_a_block(name, sequence)
    return {
        key[:2]: n for key, n in found.items() if key[2:] == ("activation", "tensor")
    }


def others(name: str, sequence: bool) -> set[str]:
    """Roles other than those of weights and of activations over tensor."""
    return {
        role
        for _, _, role, axes in of_a_block(name, sequence)
        if role not in ("weight gather", "gradient reduction")
        and (role, axes) != ("activation", "tensor")
    }


# A few key heads need their gradient added up.
TEXTBOOK = [n for n in CASES if n not in ("llama-few-kv", *PARALLEL)]
EXPERTS = ("mixtral", "qwen3-moe")
# OPT flattens [batch, seq] in its MLP; the 17 patches of the image do not divide.
PAIRED = [n for n in TEXTBOOK if n not in ("opt", "vit", *EXPERTS)]


@pytest.mark.parametrize("name", marked(TEXTBOOK))
def test_tensor_parallel_is_two_reductions_each_way(name):
    assert activations(name, False) == MEGATRON
    assert others(name, False) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", PARALLEL)
def test_blocks_that_add_up_attention_and_mlp_need_one(name):
    assert activations(name, False) == dict.fromkeys(MEGATRON, 1)
    assert others(name, False) == set()


@pytest.mark.parametrize("name", marked(PAIRED))
def test_sequence_parallel_is_pairs_of_gather_and_scatter(name):
    assert activations(name, True) == MEGATRON_SEQUENCE
    assert others(name, True) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERTS)
def test_experts_flatten_the_sequence_so_their_gradient_is_reduced_whole(name):
    assert activations(name, True) == {
        **MEGATRON_SEQUENCE,
        ("backward", "reduce-scatter"): 1,
        ("backward", "all-reduce"): 1,
    }
    assert others(name, True) == set()


@pytest.mark.parametrize("name", marked(CASES))
def test_logits_are_not_gathered(name):
    """Nothing that moves is as large as they are."""
    found = schedule(name, 1, False).collectives
    gathers = [c for c in found if c.kind == "all-gather" and c.role == "activation"]
    assert not [c for c in gathers if c.output_bytes > 4 * PIECE]


@pytest.mark.slow
def test_few_key_heads_do_not_gather_the_queries():
    found = schedule("llama-few-kv", 1, False).collectives
    gathers = [c for c in found if c.kind == "all-gather" and c.role == "activation"]
    assert all(m.operand_bytes < PIECE for c in gathers for m in c.moved)
    assert {c.phase for c in gathers} == {"backward"}  # pairs share a key's gradient
