"""Another order of a mesh's axes, replayed instead of compiled."""

import dataclasses

import pytest

from profiling._findings.case import Case
from profiling._findings.renumbered import renumbered_s
from spmd import Mesh
from tests.profiling import finding_pages

PAGES = ("weights-across-hosts", "tensor-across-hosts")


@pytest.mark.parametrize("kind", PAGES)
def test_the_time_is_that_of_a_compile(kind):
    fix = finding_pages.finding(kind, after=True).fix
    assert fix is not None and fix.proof is not None and fix.change.mesh is not None
    replayed = renumbered_s(finding_pages.case(kind), fix.change.mesh)
    assert replayed == pytest.approx(fix.proof.after.step_s, rel=0.05)
    assert replayed != pytest.approx(fix.proof.before.step_s, rel=0.05)


@pytest.mark.parametrize("kind", PAGES)
def test_the_same_order_takes_the_same_time(kind):
    case = finding_pages.case(kind)
    same = renumbered_s(case, Mesh(case.mesh.sizes))
    assert same == pytest.approx(case.schedule.step_s)


def test_an_order_of_ids_is_followed():
    """The page's devices, numbered as the fix numbers them, take what it takes."""
    case = Case(*finding_pages.compiled(PAGES[0]))
    turned = Mesh({"replica": 2, "fsdp": 4})
    ids = turned.devices.transpose(1, 0).flatten().tolist()
    by_hand = Mesh(ids, (4, 2), ("fsdp", "replica"))
    assert by_hand.axis_groups("fsdp") == turned.axis_groups("fsdp")
    assert renumbered_s(case, by_hand) == renumbered_s(case, turned)


def test_what_cannot_be_told():
    case = finding_pages.case(PAGES[0])
    assert renumbered_s(case, Mesh({"replica": 4, "fsdp": 2})) is None
    blind = dataclasses.replace(case.schedule, timeline=None)
    assert renumbered_s(Case(case.program, blind), case.mesh) is None
