"""How matmuls were split, against what is known of the field case."""

import dataclasses

import pytest
import torch

import profiling
import spmd
from profiling._collectives.splits import Splits, _pieces
from profiling._findings.case import Case
from tests.profiling import field_case, finding_pages, judged_steps
from tests.profiling.compilers import need
from tests.profiling.hlo_files import parse


def test_pieces_ways_and_sums():
    case = Case(*field_case.compiled())
    up, down = (case.splits.of(op) for op, _ in case.forward_dots)
    assert up is not None and down is not None
    assert (up.piece, up.ways, up.sums) == ((1600, 1200), (1, 8), 1)
    assert (down.piece, down.ways, down.sums) == ((100, 1280), (16, 1), 1)


def test_sums_over_a_split_dim():
    case = finding_pages.case("tensor-across-hosts")
    splits = {name: case.splits.of(op) for op, name in case.forward_dots}
    up, down = splits["up.weight"], splits["down.weight"]
    assert up is not None and up.ways == (8, 2) and up.sums == 1
    assert down is not None and down.ways == (8, 1) and down.sums == 2


def test_nothing_is_known_without_the_partitioned_module():
    program, schedule = field_case.compiled()
    case = Case(program, schedule)
    bare = dataclasses.replace(schedule, compiled=None)
    splits = Splits(case.ops, bare)
    assert not splits and case.splits
    assert splits.of(case.forward_dots[0][0]) is None


def test_matmuls_in_loops():
    case = judged_steps.looped()
    up, down = (case.splits.of(op) for op, _ in case.forward_dots)
    assert up is not None and (up.piece, up.ways) == ((128, 256), (8, 1))
    assert down is not None and (down.piece, down.sums) == ((128, 512), 1)


def test_convolutions():
    case = judged_steps.convolved(4, 256)
    found = [case.splits.of(op) for op in case.ops.ops if op.is_dot]
    assert all(split is not None for split in found)
    one, two, into_two, *_ = (split for split in found if split is not None)
    assert (one.piece, one.ways) == ((16, 256, 4, 4), (1, 4, 1, 1))
    assert (two.ways, two.sums) == ((1, 4, 1, 1), 1)
    assert into_two.sums == 4  # over features, which are split


WINDOWED = """
HloModule m
windowed_dot_general_body_{kind} {{
  p = (f32[64,32], f32[8,32], f32[{sum}], u32[]) parameter(0)
  x = f32[64,32] get-tuple-element(p), index=0
  w = f32[8,32] get-tuple-element(p), index=1
  y = f32[{sum}] get-tuple-element(p), index=2
  i = u32[] get-tuple-element(p), index=3
  next = f32[8,32] collective-permute(w), source_target_pairs={{{{0,1}},{{1,0}}}}
  zero = u32[] constant(0)
  d = f32[64,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}},
    metadata={{op_name="forward/up/mm"}}
  made = f32[{sum}] {made}
  ROOT t = (f32[64,32], f32[8,32], f32[{sum}], u32[]) tuple(x, next, made, i)
}}
windowed_dot_general_cond_{kind} {{
  p = (f32[64,32], f32[8,32], f32[{sum}], u32[]) parameter(0)
  ROOT go = pred[] constant(true)
}}
ENTRY e {{
  s = (f32[64,32], f32[8,32], f32[{sum}], u32[]) parameter(0)
  ROOT l = (f32[64,32], f32[8,32], f32[{sum}], u32[]) while(s),
    condition=windowed_dot_general_cond_{kind}, body=windowed_dot_general_body_{kind},
    metadata={{op_name="forward/up/mm"}}
}}
"""


@pytest.mark.parametrize(
    ("kind", "sum", "made"),
    [
        ("ag", "64,64", "dynamic-update-slice(y, d, zero, i)"),
        ("rs", "64,8", "add(y, d)"),
    ],
)
def test_a_windowed_einsum_is_the_matmul_that_it_was(kind, sum, made):
    module = parse(WINDOWED.format(kind=kind, sum=sum, made=made))
    (piece,) = _pieces(module, module.entry)
    assert (piece.name, piece.summed) == ("forward/up/mm", 0)
    assert piece.dims == tuple(int(d) for d in sum.split(","))


@pytest.mark.slow
def test_windowed_einsums_of_a_tpu():
    mesh = spmd.Mesh({"fsdp": 8})
    with spmd.meta_parameters():
        model = torch.nn.Linear(4096, 4096, bias=False)
    spmd.shard_module(model, mesh, spmd.Plan({"weight": ("fsdp", None)}))

    def step(x: torch.Tensor) -> torch.Tensor:
        h = model(x)
        spmd.mark_sharding(h, mesh, ("fsdp", None))
        loss = h.square().mean()
        loss.backward()
        return loss

    x = torch.empty(16384, 4096, device="meta")
    program = spmd.trace(step, x, model=model, mesh=mesh, batch_spec=("fsdp", None))
    schedule = profiling.compile(program, need("v5e:2x4"))
    assert any(c.form == "windowed" for c in schedule.collectives)
    case = Case(program, schedule)
    forward, gradient = (case.splits.of(op) for op in case.ops.ops if op.is_dot)
    assert forward is not None and forward.piece == (2048, 4096)
    assert gradient is not None and gradient.piece == (512, 4096)
    assert [f for f in profiling.explain(program, schedule) if f.is_problem] == []
