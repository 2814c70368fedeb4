"""`auto_plan` inside `FSDPv2`: what moves, and layers that run as one loop."""

from __future__ import annotations

import copy
from collections import Counter
from typing import TypeAlias

import pytest
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2
from spmd._auto.plan import auto_plan
from tests.spmd.auto.test_plan_collectives import MEGATRON_SEQUENCE, MESH
from tests.spmd.auto.test_plan_parity import check_same, whole
from tests.spmd.hf_models import CASES, HIDDEN

Key: TypeAlias = tuple[str, str, str, str]  # phase, kind, role and axes

pytestmark = pytest.mark.slow


def wrapped(model: nn.Module, plan: spmd.Plan, **options: bool) -> FSDPv2:
    return FSDPv2(model, MESH, plan=plan, min_shard_elements=1, **options)


def plan_for(model: nn.Module, *, sequence: bool) -> spmd.Plan:
    return auto_plan(model, MESH, sequence_parallel=sequence, min_shard_elements=1)


def moved(name: str, *, least: int = 0, **options: bool) -> Counter[Key]:
    """Arrays that are moved in two layers and what is around them, of `least` bytes."""
    with spmd.meta_parameters():
        model = CASES[name].build()
    model = wrapped(model, plan_for(model, sequence=True), **options)

    def step(batch):
        loss = model(**batch).loss
        loss.backward()
        return loss

    batch = CASES[name].batch()
    program = spmd.trace(step, batch, model=model, mesh=MESH, batch_spec=("fsdp",))
    found = Counter[Key]()
    for c in profiling.compile(program, "h100:1x8").collectives:
        for m in c.moved:  # of two gathers the compiler may make one
            if m.operand_bytes >= least:
                found[m.phase, c.kind, m.role, "+".join(c.axes)] += c.num_runs
    return found


def of_sequence(found: Counter[Key]) -> dict[tuple[str, str], int]:
    return {
        key[:2]: n
        for key, n in found.items()
        if key[2:] == ("activation", "tensor") and key[1] != "all-reduce"
    }


# The table and the logits are split as a layer's matrices are.
VOCABULARY = dict.fromkeys(MEGATRON_SEQUENCE, 1)
AROUND = [
    # The gradient of what the embeddings give, which every device has whole.
    ("vit", {("backward", "all-gather"): 1}),
    ("opt", VOCABULARY),
]


@pytest.mark.parametrize(("name", "others"), AROUND)
def test_nothing_but_the_textbooks_moves(name, others):
    """Two layers, and what is around them; of logits and loss sums are added up."""
    found = moved(name)
    two = {key: 2 * times for key, times in MEGATRON_SEQUENCE.items()}
    assert of_sequence(found) == Counter(two) + Counter(others)
    roles = {(role, axes) for _, _, role, axes in found}
    assert roles == {
        ("activation", "tensor"),
        ("scalar", "fsdp"),
        ("weight gather", "fsdp"),
        ("gradient reduction", "fsdp"),
        ("gradient reduction", "fsdp+tensor"),
    }


LOOP = {("forward", "all-gather"): 2, ("forward", "reduce-scatter"): 2}
# Attention is computed again, and what goes into the MLP.
LOOP |= {("backward", "all-gather"): 4, ("backward", "reduce-scatter"): 3}


@pytest.mark.parametrize(("name", "others"), [*AROUND, ("llama-few-kv", VOCABULARY)])
def test_a_loop_of_adapted_layers_computes_again_and_no_more(name, others):
    """Gradients of norms and biases aside: scattered, and gathered behind the loop."""
    found = moved(name, least=2 * HIDDEN * 4, scan_layers=True)
    two = {key: 2 * times for key, times in LOOP.items()}
    assert of_sequence(found) == Counter(two) + Counter(others)
    roles = {role for _, _, role, _ in found}
    assert roles == {"activation", "weight gather", "gradient reduction"}


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize("name", ["opt", "llama-few-kv", "vit", "gpt2", "mixtral"])
def test_a_loop_of_layers_gives_the_whole_models_gradients(name, sequence):
    model = copy.deepcopy(whole(name)[0])
    plan = plan_for(model, sequence=sequence)
    model = wrapped(model, plan, scan_layers=True)
    check_same(name, model, MESH, plan=plan)
