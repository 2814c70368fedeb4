"""Values that move wider than they are used."""

import dataclasses
from collections.abc import Callable

import torch

import profiling
import spmd
from profiling._findings.case import Case
from profiling._findings.dtype import wide_dtype
from profiling._step.ops import StepOps
from tests.profiling import field_case, finding_pages, micro_batched
from tests.profiling.compilers import need


def test_an_annotation_before_a_cast():
    found = finding_pages.finding("wide-dtype")
    assert found.what == "[8192, 512] moves as f32, but is used as bf16"
    assert found.wire_bytes == 8192 * 512 * 4 // 8 * 7 // 8
    assert found.fix is not None
    assert found.fix.code == "turned = turned.to(torch.bfloat16)"


def test_afterwards_half_is_sent():
    found = finding_pages.finding("wide-dtype", after=True)
    assert found.fix is not None and found.fix.proof is not None
    saved = found.fix.proof.before.wire_bytes - found.fix.proof.after.wire_bytes
    assert saved == found.wire_bytes // 2


def test_nothing_where_all_is_of_one_dtype():
    assert wide_dtype(finding_pages.case("synchronous")) == []
    assert wide_dtype(Case(*field_case.compiled())) == []


def turned_and_read(also: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    """The page's step, whose annotated value somebody reads besides the cast."""
    mesh = spmd.Mesh({"fsdp": 8})

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned = x.tanh() * 3
        spmd.mark_sharding(turned, mesh, (None, "fsdp"))  # moves float32
        narrow = turned.to(torch.bfloat16)
        return narrow.T @ narrow, also(turned)

    x = torch.empty(8192, 512, device="meta")
    program = spmd.trace(step, x, mesh=mesh, batch_spec=("fsdp", None))
    return Case(program, profiling.compile(program, need("h100:1x8")))


def test_what_is_read_wide_as_well_has_to_move_wide():
    case = turned_and_read(lambda turned: turned.square().sum(0))
    assert any(c.dtype == "f32" for c in case.moving)
    assert wide_dtype(case) == []


def test_several_casts_are_as_good_as_one():
    case = turned_and_read(lambda turned: turned.half().square().sum(0))
    (found,) = wide_dtype(case)
    assert found.fix is not None and len(found.fix.change.values) == 2


def test_a_product_that_comes_out_narrow_is_no_cast(monkeypatch):
    """It multiplies what it reads as float32; only its result is rounded."""
    case = finding_pages.case("wide-dtype")
    assert wide_dtype(case)
    users = StepOps.users

    def as_products(self, op):
        return [
            dataclasses.replace(u, name="dot_general") if u.name == "convert" else u
            for u in users(self, op)
        ]

    monkeypatch.setattr(StepOps, "users", as_products)
    assert wide_dtype(case) == []


def test_a_narrow_weight_beside_something_wide_in_one_gather():
    """Compilers join gathers of several dtypes; each weight is looked at by itself."""
    case = micro_batched.layers(torch.bfloat16)
    joined = tuple(
        dataclasses.replace(c, dtype="s64+bf16+f32") if c.role == "weight gather" else c
        for c in case.schedule.collectives
    )
    assert {"bf16"} == {c.dtype for c in case.schedule.collectives if c not in joined}
    schedule = dataclasses.replace(case.schedule, collectives=joined)
    assert wide_dtype(Case(case.program, schedule)) == []
