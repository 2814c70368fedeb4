"""Findings as data; `schema/explain.json` describes the form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from profiling._findings.finding import Figures, Finding, Fix, Proof
from profiling._schedule import Schedule
from spmd._meshes.spec import Spec, entry_axes

if TYPE_CHECKING:
    from profiling._findings.verify import Verified

FORMAT = 1
"""Of `document`; raised when a field goes or comes to mean another thing."""


def document(
    schedule: Schedule, findings: Sequence[Finding], verified: Verified | None
) -> dict[str, Any]:
    """What `spmd explain --json` writes.

    Args:
        schedule: What was explained.
        findings: Without `verified`, from `explain`.
        verified: What compiling again showed; None where nobody asked.

    Returns:
        Dicts, lists, strings, numbers, bools and None.
    """
    end = None
    if verified is not None:
        findings = verified.findings
        end = {
            "fixes": list(verified.fixes),
            "before": asdict(verified.before),
            "after": asdict(verified.after),
            "flags": dict(verified.flags),
            "plan": None if verified.plan is None else verified.plan.to_yaml(),
            "mesh": verified.mesh,
            "left": [finding_as_json(f) for f in verified.left],
        }
    return {
        "format": FORMAT,
        "program": schedule.name,
        "target": "" if schedule.target is None else schedule.target.text,
        "step_s": schedule.step_s,
        "exposed_s": schedule.exposed_s,
        "wire_bytes": schedule.wire_bytes,
        "findings": [finding_as_json(f) for f in findings],
        "verified": end,
    }


def finding_as_json(finding: Finding) -> dict[str, Any]:
    """One finding.

    Args:
        finding: The finding.

    Returns:
        Dicts, lists, strings, numbers, bools and None.
    """
    lists = ("why", "tensors", "axes", "modules", "phases", "sources", "collectives")
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "where": finding.where,
        "what": finding.what,
        "wanted": finding.wanted,
        **{name: list(getattr(finding, name)) for name in lists},
        "link": finding.link,
        "wire_bytes": finding.wire_bytes,
        "held_bytes": finding.held_bytes,
        "exposed_s": finding.exposed_s,
        "fix": None if finding.fix is None else _fix(finding.fix),
        "others": [_fix(fix) for fix in finding.others],
        "tried": list(finding.tried),
        "goes_with": finding.goes_with,
        "advice": finding.advice,
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "text": fix.text,
        "code": fix.code,
        "place": fix.place,
        "flags": dict(fix.change.flags),
        "parameters": {n: _spec(s) for n, s in fix.parameters.items()},
        "outputs": {n: _spec(s) for n, s in fix.outputs.items()},
        "proof": None if fix.proof is None else _proof(fix.proof),
    }


def _spec(spec: Spec) -> list[list[str]]:
    """Axes of each dim; a dim that is not split has none."""
    return [list(entry_axes(entry)) for entry in spec]


def _proof(proof: Proof) -> dict[str, Any]:
    figures: dict[str, Figures] = {"before": proof.before, "after": proof.after}
    return {
        **{name: asdict(value) for name, value in figures.items()},
        "gone": proof.gone,
        "smaller": proof.smaller,
        "even_at": proof.even_at,
        "gains": list(proof.gains),
        "costs": list(proof.costs),
    }
