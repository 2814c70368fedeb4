"""What one block of a model under `auto_plan` moves, in the compiled program."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

import profiling
import spmd
from spmd import Mesh
from spmd._auto.plan import auto_plan
from tests.profiling.compilers import need
from tests.spmd.hf_models import CASES, HIDDEN, ROWS, SEQ

MESH = Mesh({"fsdp": 2, "tensor": 4})
DEFAULT = ("llama",)
WAYS = MESH.axis_size("tensor")
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
def traced(name: str, layers: int, sequence: bool) -> spmd.Program:
    with spmd.meta_parameters():
        model = CASES[name].build(num_hidden_layers=layers)
    plan = auto_plan(model, MESH, sequence_parallel=sequence, min_shard_elements=1)
    spmd.shard_module(model, MESH, plan)

    def step(batch):
        loss = model(**batch).loss
        loss.backward()
        return loss

    batch = CASES[name].batch()
    return spmd.trace(step, batch, model=model, mesh=MESH, batch_spec=("fsdp",))


@functools.cache
def schedule(name: str, layers: int, sequence: bool) -> profiling.Schedule:
    return profiling.compile(traced(name, layers, sequence), "h100:1x8")


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


def textbook(name: str, sequence: bool) -> dict[tuple[str, str], int]:
    """Executions by phase and kind, for one block over the tensor axis."""
    times = 1 if name in PARALLEL else 2
    found = dict.fromkeys(MEGATRON_SEQUENCE if sequence else MEGATRON, times)
    if sequence and "routing weights" in notes(name):
        found["backward", "all-reduce"] = 1
    return found


def notes(name: str) -> str:
    """What the plan for sequence parallelism says to the user."""
    config = CASES[name].make_config()
    config.architectures = [CASES[name].model]
    plan = auto_plan(config, MESH, sequence_parallel=True, min_shard_elements=1)
    return "\n".join(note for part in plan.parts for note in part.notes)


STYLES = pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])


@STYLES
@pytest.mark.parametrize("name", marked(CASES))
def test_a_block_has_the_collectives_of_its_style(name, sequence):
    assert activations(name, sequence) == textbook(name, sequence)
    assert others(name, sequence) == set()


@pytest.mark.parametrize("name", marked(CASES))
def test_gathers_and_scatters_move_no_more_than_their_share(name):
    """Pieces are even, and no scatter is a slice of what is reduced whole."""
    found = [c for c in schedule(name, 2, True).collectives if c.axes == ("tensor",)]
    arrays = [(c.kind, m) for c in found for m in c.moved if m.role == "activation"]
    share = {"all-gather": WAYS - 1, "reduce-scatter": (WAYS - 1) / WAYS}
    for kind, moved in arrays:
        if kind in share:
            assert moved.wire_bytes == share[kind] * moved.operand_bytes
        else:  # of the loss, and of routing weights
            assert moved.operand_bytes <= ROWS // 2 * SEQ * 4 * 4


@pytest.mark.parametrize("name", marked(CASES))
def test_logits_are_not_gathered(name):
    """Nothing that moves is as large as they are."""
    found = schedule(name, 1, False).collectives
    gathers = [c for c in found if c.kind == "all-gather" and c.role == "activation"]
    assert not [c for c in gathers if c.output_bytes > 4 * PIECE]


@pytest.mark.slow
@STYLES
def test_weights_of_few_key_heads_are_added_up_over_tensor(sequence):
    """They are whole over that axis: nothing is gathered, and no activation is."""
    found = schedule("llama-few-kv", 2, sequence).collectives
    moved = Counter(
        (m.tensor.removeprefix("model.layers."), c.kind, m.role)
        for c in found
        for m in c.moved
        if m.role in ("weight gather", "gradient reduction") and c.axes == ("tensor",)
    )
    assert moved == {
        (f"{i}.self_attn.{n}_proj.weight", "all-reduce", "gradient reduction"): 1
        for i in range(2)
        for n in "kv"
    }
    assert all(c.axes for c in found)


@pytest.mark.slow
@pytest.mark.parametrize("merge_far", [False, True], ids=["default", "merged"])
def test_a_tpu_gathers_again_for_gradients_of_weights_unless_told_not_to(merge_far):
    """One layer, and what is around it.

    The partitioner gathers anew for each product. Equal gathers are made one by the
    compilers: GPUs' always does, libtpu's only where they are no further apart than
    100 instructions. Those for gradients of weights are: what a layer's norms give is
    gathered again for each of q, k, v, gate and up, rather than kept from forward.
    """
    flags = {"xla_tpu_spmd_threshold_for_allgather_cse": 10**6} if merge_far else {}
    program = traced("llama", 1, True)
    found = profiling.compile(program, need("v5e:2x4"), flags=flags).collectives
    gathers = [c for c in found if c.kind == "all-gather" and c.role == "activation"]
    by_phase = Counter(c.phase for c in gathers)
    again = Counter(
        c.module.rpartition(".")[2] for c in gathers if c.phase == "backward"
    )
    textbook = {"o_proj", "down_proj", "embed_tokens"}
    assert by_phase["forward"] == 3  # with that of the logits
    if merge_far:
        assert again == dict.fromkeys(textbook, 1)
    else:
        norms = {f"{n}_proj" for n in ("q", "k", "v", "gate", "up")}
        assert again == dict.fromkeys(textbook | norms, 1)
