"""Fixes are proven by compiling again, alone and together."""

import dataclasses

import pytest

import profiling
from profiling._findings.finding import Figures, Fix, Proof
from profiling._findings.verify import figures, helps, verify
from spmd import Mesh, Plan
from tests.profiling import field_case, finding_pages
from tests.profiling.compilers import need

GAINS = {
    "activation-gathered": {"bytes", "time"},
    "batch-replicated": {"memory"},
    "gradient-all-reduced": {"bytes", "time"},
    "gradient-per-micro-batch": {"bytes", "time"},
    "large-replicated": {"memory", "time"},
    "many-small": {"bytes", "time"},
    "padding-waste": {"bytes", "memory", "time"},
    "reshard-between-annotations": {"bytes", "time"},
    "tensor-across-hosts": {"time"},
    "weight-gathered-again": {"bytes", "time"},
    "weights-across-hosts": {"time"},
    "wide-dtype": {"bytes", "time"},
}


@pytest.mark.parametrize("kind", GAINS)
def test_the_fix_of_a_page_removes_what_it_shows(kind):
    found = finding_pages.finding(kind, after=True)
    assert found.fix is not None and found.fix.proof is not None
    assert found.fix.proof.gone
    assert set(found.fix.proof.gains) == GAINS[kind]
    left = [f for f in finding_pages.verified(kind).left if f.is_problem]
    assert left == []


def test_the_flags_that_shorten_the_step_most_are_offered():
    verified = finding_pages.verified("synchronous")
    found = finding_pages.finding("synchronous", after=True)
    fix = found.fix
    assert fix is not None and fix.proof is not None and fix.proof.gains == ("time",)
    before, after = fix.proof.before.step_s, fix.proof.after.step_s
    assert before is not None and after is not None and after < 0.85 * before
    assert dict(fix.change.flags) == verified.flags
    assert all(f"--{name}=" in fix.code for name in verified.flags)
    assert verified.plan is None and verified.after == fix.proof.after


def test_what_shortens_the_step_otherwise_is_not_offered():
    (found,) = (
        f for f in finding_pages.verified("synchronous").findings if f.where == "data"
    )
    assert found.fix is None and len(found.tried) == 3
    assert all("it stays as it was; less time" in line for line in found.tried)


def test_a_fix_that_does_not_help_is_not_offered():
    found = finding_pages.finding("full-rematerialisation", after=True)
    assert found.fix is None
    assert "more time" in found.tried[0]
    assert "output of up" in found.goes_with


def test_after_the_fix_of_the_field_case_weights_are_gathered():
    verified = field_case.verified()
    fix = field_case.gathered(verified.findings).fix
    assert fix is not None and fix.proof is not None
    before, after = fix.proof.before, fix.proof.after
    assert before.activation_bytes > 0 and after.activation_bytes == 0
    up, down = field_case.UP * 7 // 8, field_case.DOWN * 7 // 8
    assert before.weight_gather_bytes == 2 * down  # forward and backward
    assert after.weight_gather_bytes == up + 2 * down
    assert after.memory_bytes < before.memory_bytes
    assert fix.proof.gone and "memory" in fix.proof.gains
    assert set(fix.proof.costs) == {"bytes", "time"}  # at 100 rows a device
    assert fix.proof.even_at == pytest.approx(3.3, abs=0.05)


def test_the_end_of_the_field_case_is_a_plan_that_gives_the_same_step():
    verified = field_case.verified()
    assert verified.plan is not None
    assert verified.plan.to_yaml().splitlines() == [
        "name: explain",
        "parameters:",
        "  down.weight: [fsdp, null]",
        "  up.weight: [fsdp, null]",
        "outputs:",
        "  up: [[fsdp, replica], null]",
    ]
    program = field_case.traced(Plan.from_yaml(verified.plan.to_yaml()))
    target = need(field_case.TARGET)
    schedule = profiling.compile(program, target, flags=verified.flags)
    assert figures(schedule) == verified.after
    assert [f for f in verified.left if f.is_problem] == []


def test_a_fix_that_does_not_compile_is_said():
    program, schedule = finding_pages.compiled("batch-replicated")
    found = finding_pages.finding("batch-replicated")
    assert found.fix is not None
    bad = profiling.Change(inputs=(("x", (None, "none")),))
    broken = found.with_fix(dataclasses.replace(found.fix, change=bad))
    verified = verify(program, schedule, [broken])
    assert verified.findings[0].fix is None
    assert "names mesh axis 'none'" in verified.findings[0].tried[0]
    assert verified.fixes == () and verified.after == verified.before


def test_no_more_than_asked_for_is_tried():
    program, schedule = finding_pages.compiled("gradient-per-micro-batch")
    findings = finding_pages.explained("gradient-per-micro-batch")
    tried = verify(program, schedule, findings, most=1).findings
    assert sum(f.fix is not None and f.fix.proof is not None for f in tried) <= 1


def test_a_schedule_that_was_read_is_refused():
    program, schedule = finding_pages.compiled("batch-replicated")
    read = dataclasses.replace(schedule, compiled=None)
    with pytest.raises(ValueError, match="cannot be compiled again"):
        verify(program, read, [])


def test_the_mesh_of_the_end_is_python():
    verified = finding_pages.verified("weights-across-hosts")
    assert verified.mesh == 'spmd.Mesh.hybrid(ici={"fsdp": 4}, dcn={"replica": 2})'
    assert verified.program.mesh == Mesh.hybrid(ici={"fsdp": 4}, dcn={"replica": 2})
    assert finding_pages.verified("many-small").mesh is None


def proof(
    wire: int = 100,
    memory: int = 100,
    step: float = 1.0,
    gone: bool = True,
    over: tuple[int, int] = (0, 0),
    smaller: bool = True,
) -> Proof:
    """From 100 bytes, 100 of memory and a second."""
    return Proof(
        Figures(100, 100, 1.0, 0, 100, None, over[0]),
        Figures(wire, memory, step, 0, 0, None, over[1]),
        gone,
        smaller,
    )


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        (proof(step=0.9), True),
        (proof(step=0.9, memory=110, gone=False), False),
        (proof(step=0.9, wire=90, gone=False), True),
        (proof(memory=90), True),
        (proof(memory=90, gone=False), False),
        (proof(memory=90, step=1.1), False),
        (proof(), False),
        (proof(step=0.9, wire=90, gone=False, smaller=False), False),
        (proof(step=1.1, memory=90, over=(20, 10)), True),  # it has to fit
        (proof(step=0.9, memory=110, over=(0, 10)), False),
    ],
)
def test_what_helps(given, offered):
    found = finding_pages.finding("wide-dtype")
    assert helps(found, given) is offered


def test_what_the_specs_ask_for_may_take_longer():
    found = finding_pages.finding("activation-gathered")
    assert helps(found, proof(memory=90, step=1.1))
    assert not helps(found, proof(step=1.1))
    assert isinstance(found.fix, Fix)
