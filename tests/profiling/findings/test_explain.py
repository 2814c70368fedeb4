"""Each page's program shows its class, and well-annotated programs show no problem."""

from typing import get_args

import pytest
import torch

import profiling
import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from profiling._findings.case import Case
from profiling._findings.explain import explain
from profiling._findings.finding import FINDING_KINDS, FindingKind
from spmd import Mesh, Program
from spmd._program.program import MLIR_MAGIC
from tests.profiling import finding_pages, traced_steps
from tests.profiling.compilers import need

NOTES = {"many-small", "synchronous"}
MORE = ("qwen3", "mixtral", "qwen3_moe")
STEPS = [
    ("decoder", traced_steps.FSDP),
    ("decoder", traced_steps.TENSOR),
    ("llama", traced_steps.FSDP),
    ("llama", traced_steps.TENSOR),
    ("gpt2", traced_steps.FSDP),
]


def test_every_kind_has_a_page_and_no_other():
    pages = {p.stem for p in finding_pages.FOLDER.glob("*.md")} - {"README"}
    assert pages == set(FINDING_KINDS) == set(get_args(FindingKind))
    index = (finding_pages.FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"]({kind}.md)" in index for kind in FINDING_KINDS)


@pytest.mark.parametrize("kind", FINDING_KINDS)
def test_a_page_shows_its_class(kind):
    found = finding_pages.finding(kind)
    assert found.severity == ("note" if kind in NOTES else "problem")
    assert found.what and found.where
    assert all(found.why)
    assert found.wire_bytes or found.held_bytes
    names = {c.name for c in finding_pages.compiled(kind)[1].collectives}
    assert set(found.collectives) <= names


@pytest.mark.parametrize(
    ("model", "mesh"), STEPS, ids=[f"{k}-{len(m.shape)}d" for k, m in STEPS]
)
def test_nothing_above_a_note_where_all_is_annotated(model, mesh):
    program = traced_steps.program_of(model, mesh)
    schedule = profiling.compile(program, need("h100:1x8"))
    assert [f for f in explain(program, schedule) if f.is_problem] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", MORE)
def test_further_models_under_fsdp(kind):
    program = traced_steps.plain_program(traced_steps.hugging_face(kind))
    schedule = profiling.compile(program, need("h100:1x8"))
    assert len(Case(program, schedule).forward_dots) > 10  # they are judged
    assert [f for f in explain(program, schedule) if f.is_problem] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"scan_layers": True}, {"remat": "full"}], ids=["scan", "remat"]
)
def test_layers_in_a_loop_or_computed_again(options):
    model = traced_steps.model_of("decoder")
    program = traced_steps.plain_program(model, "Block", **options)
    schedule = profiling.compile(program, need("h100:1x8"))
    case = Case(program, schedule)
    assert len(case.forward_dots) > 7
    assert all(case.splits.of(op) is not None for op, _ in case.forward_dots)
    assert [f for f in explain(program, schedule) if f.is_problem] == []


@pytest.mark.parametrize(
    "mesh", [traced_steps.REPLICA, Mesh({"fsdp": 8, "replica": 2})], ids=repr
)
def test_copies_over_hosts_are_no_problem_in_either_order(mesh):
    program = traced_steps.program_of("decoder", mesh)
    schedule = profiling.compile(program, need("h100:2x8"))
    assert [f for f in explain(program, schedule) if f.is_problem] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "target"),
    [(traced_steps.FSDP, "h100:1x8"), (traced_steps.REPLICA, "h100:2x8")],
    ids=["fsdp", "replica"],
)
def test_micro_batches_in_mixed_precision(mesh, target):
    wrapped = FSDPv2(
        traced_steps.model_of("llama"),
        mesh,
        min_shard_elements=1,
        auto_wrap_policy={"LlamaDecoderLayer"},
        mixed_precision=MixedPrecision(),
    )
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)

    def step(batch: dict[str, torch.Tensor]) -> None:
        for micro in wrapped.microbatches(batch, 2):
            (wrapped(**micro)[0] / 2).backward()
        optimizer.step()
        optimizer.zero_grad()

    ids = torch.empty(4 * mesh.size, traced_steps.SEQ, dtype=torch.int64, device="meta")
    batch = {"input_ids": ids, "labels": ids}
    program = spmd.trace(step, batch, model=wrapped, optimizer=optimizer, mesh=mesh)
    schedule = profiling.compile(program, need(target))
    assert [f for f in explain(program, schedule) if f.is_problem] == []


@pytest.mark.parametrize("kind", FINDING_KINDS)
def test_what_is_waited_for_longest_comes_first_and_of_equals_problems(kind):
    found = finding_pages.explained(kind)
    keys = [(-(f.exposed_s or 0.0), not f.is_problem) for f in found]
    assert keys == sorted(keys)


def test_a_program_without_a_mesh_is_refused():
    program = Program(MLIR_MAGIC, None, (), ())
    _, schedule = finding_pages.compiled("batch-replicated")
    with pytest.raises(ValueError, match="is for one device: nothing moves"):
        explain(program, schedule)


def test_a_schedule_of_another_program_is_refused():
    program, _ = finding_pages.compiled("batch-replicated")
    _, schedule = finding_pages.compiled("large-replicated")
    with pytest.raises(ValueError, match="give the one it was compiled from"):
        explain(program, schedule)
