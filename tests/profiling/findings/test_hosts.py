"""Axes whose traffic crosses hosts."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import nn

import profiling
import spmd
from profiling._findings.case import Case
from profiling._findings.hosts import tensor_across_hosts, weights_across_hosts
from profiling._findings.verify import figures
from profiling._report.show_words import seconds_text
from spmd import Mesh
from tests.profiling import finding_pages
from tests.profiling.compilers import need


@functools.cache
def compiled(rows: int = 65536, **sizes: int) -> Case:
    """Two layers split over the axes that there are, on hosts of eight."""
    mesh = Mesh(sizes)
    inner, outer = (a if a in sizes else None for a in ("tensor", "fsdp"))
    data = mesh.data_axes or None
    with spmd.meta_parameters():
        model = nn.Sequential()
        model.add_module("up", nn.Linear(512, 2048, bias=False))
        model.add_module("down", nn.Linear(2048, 512, bias=False))
    plan = spmd.Plan(
        {"up.weight": (inner, outer), "down.weight": (outer, inner)},
        outputs={"up": (data, inner), "down": (data, None)},
    )
    spmd.shard_module(model, mesh, plan)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    x = torch.empty(rows, 512, device="meta")
    program = spmd.trace(step, x, model=model, mesh=mesh, batch_spec=(data, None))
    target = need(f"h100:{mesh.size // 8}x8")
    return Case(program, profiling.compile(program, target))


def test_the_axis_is_put_innermost():
    found = finding_pages.finding("tensor-across-hosts")
    assert (found.where, found.axes, found.link) == ("tensor", ("tensor",), "ib")
    assert found.wire_bytes == 1024 * 512 * 4  # all of it to one other device
    assert "8 devices apart" in found.why[0]
    assert found.fix is not None
    assert found.fix.change.mesh == Mesh({"fsdp": 8, "tensor": 2})
    assert found.fix.code == 'mesh = spmd.Mesh({"fsdp": 8, "tensor": 2})'


def test_nothing_on_one_host():
    assert tensor_across_hosts(finding_pages.case("many-small")) == []
    assert weights_across_hosts(finding_pages.case("many-small")) == []


@pytest.mark.slow
def test_an_axis_that_is_too_long_gives_devices_to_the_batch():
    case = compiled(fsdp=2, tensor=16)
    (found,) = tensor_across_hosts(case)
    assert "has 16 devices: at most 8 stand together" in found.why[-1]
    wanted = Mesh.hybrid(ici={"tensor": 8}, dcn={"fsdp": 4})
    assert [f.change.mesh for f in found.fixes] == [wanted]
    verified = profiling.verify(case.program, case.schedule, [found])
    fix = verified.findings[0].fix
    assert fix is not None and fix.proof is not None and fix.proof.gone
    assert set(fix.proof.gains) == {"bytes", "memory", "time"}
    assert fix.proof.costs == ()
    assert verified.mesh == 'spmd.Mesh.hybrid(ici={"tensor": 8}, dcn={"fsdp": 4})'
    anew = compiled(fsdp=4, tensor=8)  # traced for that mesh, not edited
    assert figures(anew.schedule) == fix.proof.after


def test_several_axes_may_take_the_devices():
    """What splits weights comes first: then a device holds no more of them."""
    case = field_of(Mesh({"replica": 2, "fsdp": 2, "tensor": 16}), 64)
    (found,) = tensor_across_hosts(case)
    meshes = [f.change.mesh for f in found.fixes]
    assert [m.sizes for m in meshes if m is not None] == [
        {"replica": 2, "fsdp": 4, "tensor": 8},
        {"replica": 4, "fsdp": 2, "tensor": 8},
    ]


def field_of(mesh: Mesh, num_devices: int) -> Case:
    """The page's step, as if all of it had been seen on another mesh."""
    program, schedule = finding_pages.compiled("tensor-across-hosts")
    far = [
        dataclasses.replace(c, crosses_hosts=True, axes=("tensor",))
        for c in schedule.collectives
    ]
    target = profiling.Target.parse(f"h100:{num_devices // 8}x8")
    schedule = dataclasses.replace(schedule, collectives=tuple(far), target=target)
    case = Case(program, schedule)
    case.mesh = mesh
    case.data_axes = mesh.data_axes
    return case


def test_without_another_axis_the_sizes_are_advice():
    (found,) = tensor_across_hosts(field_of(Mesh({"tensor": 16}), 16))
    assert found.fix is None
    assert 'Mesh.hybrid(ici={"tensor": 8}, dcn={"replica": 2})' in found.advice


def test_rows_that_cross_hosts_are_another_matter():
    program, schedule = finding_pages.compiled("tensor-across-hosts")
    rows = [
        dataclasses.replace(c, crosses_hosts=True, axes=("fsdp",))
        for c in schedule.collectives
    ]
    case = Case(program, dataclasses.replace(schedule, collectives=tuple(rows)))
    assert tensor_across_hosts(case) == []


def test_copies_are_put_between_hosts():
    found = finding_pages.finding("weights-across-hosts")
    assert (found.where, found.axes, found.link) == ("fsdp", ("fsdp",), "ib")
    assert "devices of replica, which hold the same ones, share a host" in found.what
    # 3 gathers and 2 scatters of 4 MiB x 4, three quarters of each.
    assert found.wire_bytes == 5 * 1024 * 4096 * 4 * 3 // 4
    assert found.fix is not None
    assert found.fix.change.mesh == Mesh.hybrid(ici={"fsdp": 4}, dcn={"replica": 2})
    right = finding_pages.verified("weights-across-hosts").left
    assert "weights-across-hosts" not in {f.kind for f in right}


def test_the_other_order_is_said_with_its_time():
    found = finding_pages.finding("weights-across-hosts", after=True)
    assert found.fix is not None and found.fix.proof is not None
    after = found.fix.proof.after.step_s
    assert after is not None
    words = f"takes {seconds_text(after)} instead of"  # as a compile then gives
    assert found.is_problem and words in found.why[-1]


def test_an_order_that_is_no_slower_may_stay():
    """Each card carries a piece of its own: the sum between hosts takes longer."""
    case = compiled(rows=8192, fsdp=8, replica=2)
    (found,) = weights_across_hosts(case)
    assert found.severity == "note"
    assert found.why[-1].endswith("too little to be sure of, or nothing")
    assert not any(f.is_problem for f in profiling.explain(case.program, case.schedule))
    (after,) = profiling.verify(case.program, case.schedule, [found]).findings
    assert after.fix is None and after.severity == "note"
    assert "more time" in after.tried[0] or "nothing gained" in after.tried[0]
    blind = Case(case.program, dataclasses.replace(case.schedule, timeline=None))
    (found,) = weights_across_hosts(blind)
    assert found.severity == "note" and "without a timeline" in found.why[-1]


def test_a_problem_whose_fix_takes_longer_becomes_a_note():
    """Where the estimate is wrong, the compile says so."""
    case = compiled(rows=8192, fsdp=8, replica=2)
    (found,) = weights_across_hosts(case)
    wrong = dataclasses.replace(found, severity="problem")
    (after,) = profiling.verify(case.program, case.schedule, [wrong]).findings
    assert after.fix is None and after.severity == "note"


@pytest.mark.slow
def test_layers_over_hosts_are_a_note_where_little_moves():
    (found,) = tensor_across_hosts(compiled(rows=1024, tensor=2, fsdp=8))
    assert found.severity == "note" and len(found.fixes) == 1
    (found,) = tensor_across_hosts(compiled(rows=65536, tensor=2, fsdp=8))
    assert found.is_problem


@pytest.mark.slow
def test_weights_that_do_not_fit_a_host_cross_fewer_of_them():
    (found,) = weights_across_hosts(compiled(rows=8192, fsdp=16, replica=2))
    first, second = found.fixes
    assert first.change.mesh == Mesh({"replica": 2, "fsdp": 16})
    assert first.text.endswith("so that fsdp crosses fewer hosts")
    wanted = Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 4})
    assert second.change.mesh == wanted


@pytest.mark.slow
def test_tensor_stays_inside_of_copies():
    (found,) = weights_across_hosts(compiled(rows=8192, fsdp=4, replica=2, tensor=2))
    (fix,) = found.fixes
    wanted = Mesh.hybrid(ici={"fsdp": 4, "tensor": 2}, dcn={"replica": 2})
    assert fix.change.mesh == wanted


def test_copies_on_other_hosts_are_where_they_belong():
    case = Case(*finding_pages.compiled("weights-across-hosts"))
    assert weights_across_hosts(case)
    case.mesh = Mesh({"replica": 2, "fsdp": 4})
    assert weights_across_hosts(case) == []


def test_devices_in_an_order_of_their_own_are_left():
    program, schedule = finding_pages.compiled("weights-across-hosts")
    case = Case(program, schedule)
    case.mesh = Mesh([1, 0, *range(2, 8)], (4, 2), ("fsdp", "replica"))
    (found,) = weights_across_hosts(case)
    assert found.fix is None
