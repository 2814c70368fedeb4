"""Findings on a terminal of 80 columns."""

import dataclasses
import io

from rich.console import Console

from profiling._findings.show import show_end, show_findings
from tests.profiling import field_case, finding_pages


def shown(print_on, width: int = 80) -> list[str]:
    file = io.StringIO()
    print_on(Console(file=file, width=width))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert all(len(line) <= width for line in lines)
    return lines


def test_the_field_case_in_full():
    _, schedule = field_case.compiled()
    verified = field_case.verified()
    lines = shown(lambda c: show_findings(schedule, verified.findings, c, notes=False))
    text = " ".join(" ".join(lines).split())
    assert lines[0] == "step on h100:2x8: 2 problems, 2 notes"
    assert "2. problem: activations move over fsdp around up" in text
    assert "69.4 MiB a device sends in a step, 333 us exposed (estimate)" in text
    assert 'spmd.mark_sharding(h, mesh, (("fsdp", "replica"), None))' in text
    assert "the finding is gone; a trade: less memory for more bytes and time" in text
    assert "from about 3.3 times these rows on" in text
    assert "goes with another's fix" in text
    assert "1. note: compute waits for" in text  # flags help, which was proven
    assert lines[-1] == "1 note more; --notes shows them"


def test_the_end_and_its_plan():
    lines = shown(lambda c: show_end(field_case.verified(), c))
    assert "All fixes together" in lines
    assert "    up: [[fsdp, replica], null]" in lines


def test_notes_are_shown_when_asked_for():
    _, schedule = finding_pages.compiled("many-small")
    found = finding_pages.explained("many-small")
    text = "\n".join(shown(lambda c: show_findings(schedule, found, c)))
    assert "note: 39 times reduce-scatter over tensor" in text
    assert "--notes" not in text


def test_a_note_with_a_proven_fix_is_shown_and_its_flags():
    _, schedule = finding_pages.compiled("synchronous")
    verified = finding_pages.verified("synchronous")
    lines = shown(lambda c: show_findings(schedule, verified.findings, c, notes=False))
    assert any("compute waits for" in line for line in lines)
    assert lines[-1] == "1 note more; --notes shows them"
    end = shown(lambda c: show_end(verified, c))
    assert "With flags" in end
    assert "  --xla_gpu_enable_analytical_latency_estimator=true" in end


def test_advice_is_told_from_fixes():
    _, schedule = finding_pages.compiled("many-small")
    found = finding_pages.finding("many-small")
    left = dataclasses.replace(found, fix=None, advice="buy larger devices")
    lines = shown(lambda c: show_findings(schedule, [left], c))
    text = " ".join(" ".join(lines).split())
    assert "advice buy larger devices (in the script: not tried)" in text
    assert not any(line.strip().startswith("fix ") for line in lines)


def test_the_mesh_of_the_end_is_shown():
    verified = finding_pages.verified("tensor-across-hosts")
    lines = shown(lambda c: show_end(verified, c))
    at = lines.index("With mesh")
    assert lines[at + 1] == '  mesh = spmd.Mesh({"fsdp": 8, "tensor": 2})'
    assert "With mesh" not in shown(lambda c: show_end(field_case.verified(), c))


def test_nothing_found():
    _, schedule = finding_pages.compiled("many-small")
    lines = shown(lambda c: show_findings(schedule, (), c))
    assert lines[0] == "step on h100:1x8: nothing found"


def test_no_fix_helps():
    some = finding_pages.verified("many-small")
    none = dataclasses.replace(some, fixes=(), findings=())
    assert "no fix to compile" in shown(lambda c: show_end(none, c))
    found = some.findings[0].with_fix(None, tried=("in vain",))
    tried = dataclasses.replace(none, findings=(found,))
    assert "no fix that was compiled helps" in shown(lambda c: show_end(tried, c))
