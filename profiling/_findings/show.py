"""Findings as text for people, in 80 columns and more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from profiling._findings.finding import Figures, Finding, Fix, Proof
from profiling._findings.fix_flags import flags_text
from profiling._findings.why import over, several
from profiling._report.show_words import flops_text, print_indented, seconds_text
from profiling._schedule import Schedule
from spmd._program.summary import bytes_text

if TYPE_CHECKING:
    from profiling._findings.verify import Verified

_COLOURS = {"problem": "red", "note": "cyan"}


def show_findings(
    schedule: Schedule,
    findings: Sequence[Finding],
    console: Console,
    *,
    notes: bool = True,
) -> None:
    """Print findings.

    Args:
        schedule: What was explained.
        findings: From `explain` or `verify`.
        console: Where to; its width is used.
        notes: Print notes in full too, not only those with a proven fix.
    """
    target = "" if schedule.target is None else f" on {schedule.target.text}"
    console.print(
        Text.assemble((f"{schedule.name}{target}", "bold"), f": {_count(findings)}")
    )
    if schedule.step_s is not None:
        print_indented(
            console,
            f"estimate: a step takes {seconds_text(schedule.step_s)}, of which compute "
            f"waits {seconds_text(schedule.exposed_s)}; a device sends "
            f"{bytes_text(schedule.wire_bytes)}",
        )
    if schedule.over_bytes:
        missing = bytes_text(schedule.over_bytes)
        print_indented(console, f"it does not fit: a device lacks {missing}")
    shown = [f for f in findings if notes or f.is_problem or _is_proven(f)]
    for number, found in enumerate(shown, start=1):
        console.print()
        _show(number, found, console)
    left = [f for f in findings if f not in shown]
    if left:
        console.print()
        console.print(f"{_count(left)} more; --notes shows them", style="dim")


def _is_proven(found: Finding) -> bool:
    return found.fix is not None and found.fix.proof is not None


def _count(findings: Sequence[Finding]) -> str:
    problems = sum(f.is_problem for f in findings)
    notes = len(findings) - problems
    if not findings:
        return "nothing found"
    parts = [(problems, "problem"), (notes, "note")]
    said = [f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in parts if n]
    return ", ".join(said)


def _show(number: int, found: Finding, console: Console) -> None:
    title = Text(f"{number}. ", style="bold")
    title.append(f"{found.severity}: ", style=f"bold {_COLOURS[found.severity]}")
    title.append(found.what)
    console.print(title)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("class", Text(found.kind))
    wanted = "by the specs of weights and batch" if found.wanted else "by no spec"
    for name, text in (
        ("moves" if found.wire_bytes else "holds", _moves(found)),
        ("costs", _costs(found)),
        ("in", _place(found)),
        ("wanted", wanted),
    ):
        if text:
            table.add_row(name, Text(text))
    for index, line in enumerate(found.why):
        table.add_row("" if index else "why", Text(line))
    for line in found.tried:
        table.add_row("tried", Text(line))
    if found.goes_with:
        table.add_row("goes", Text(f"with another's fix: {found.goes_with}"))
    if found.fix is not None:
        table.add_row("fix", Text(found.fix.text))
        table.add_row("", Text(found.fix.code, style="bold"))
        table.add_row("", Text(found.fix.place))
    if found.advice:
        table.add_row("advice", Text(f"{found.advice} (in the script: not tried)"))
    console.print(Padding(table, (0, 0, 0, 3), expand=False))
    if found.fix is not None and found.fix.proof is not None:
        _proof(found.fix, found.fix.proof, console)


def _moves(found: Finding) -> str:
    tensors = several([t.strip() for t in found.tensors])
    if not found.wire_bytes or not found.axes:
        return tensors
    link = f" ({found.link})" if found.link else ""
    return f"{tensors} over {over(found.axes)}{link}"


def _costs(found: Finding) -> str:
    parts = []
    if found.wire_bytes:
        parts.append(f"{bytes_text(found.wire_bytes)} a device sends in a step")
    if found.held_bytes:
        parts.append(f"{bytes_text(found.held_bytes)} of a device's memory")
    if found.exposed_s is not None:
        parts.append(f"{seconds_text(found.exposed_s)} exposed (estimate)")
    return ", ".join(parts)


def _place(found: Finding) -> str:
    sources = [s.rpartition("/")[2] for s in found.sources]
    parts = (several(found.modules), several(found.phases), several(sources))
    return " · ".join(part for part in parts if part)


def _proof(fix: Fix, proof: Proof, console: Console) -> None:
    gone = "the finding is gone" if proof.gone else "the finding is smaller"
    words = f"compiled again: {gone}; "
    if proof.is_trade:
        words += f"a trade: less {several(proof.gains)} for more {several(proof.costs)}"
    else:
        words += f"less {several(proof.gains)}"
    style = "yellow" if proof.is_trade else "green"
    print_indented(console, Text(words, style=style), 3)
    if proof.even_at is not None:
        words = (
            f"activations grow with the batch, weights do not: from about "
            f"{proof.even_at:.2g} times these rows on, the fix sends less"
        )
        print_indented(console, Text(words), 3)
    print_indented(console, _before_after(proof.before, proof.after), 5)


def _before_after(before: Figures, after: Figures) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("", "before", "after"):
        table.add_column(title, justify="right" if title else "left")
    for name, field in (
        ("sent", "wire_bytes"),
        ("  to gather weights", "weight_gather_bytes"),
        ("  to move activations", "activation_bytes"),
        ("memory", "memory_bytes"),
    ):
        pair = [bytes_text(getattr(f, field)) for f in (before, after)]
        table.add_row(name, *pair)
    if before.flops is not None and after.flops is not None:
        table.add_row("matmuls", flops_text(before.flops), flops_text(after.flops))
    table.add_row(
        "step (estimate)", seconds_text(before.step_s), seconds_text(after.step_s)
    )
    return table


def show_end(verified: Verified, console: Console) -> None:
    """Print the step with all fixes that help.

    Args:
        verified: From `verify`.
        console: Where to.
    """
    console.print()
    if not verified.fixes:
        tried = any(found.tried for found in verified.findings)
        words = "no fix that was compiled helps" if tried else "no fix to compile"
        console.print(Text(words, style="bold"))
        return
    console.print(Text("All fixes together", style="bold"))
    for text in verified.fixes:
        print_indented(console, Text(f"- {text}"))
    print_indented(console, _before_after(verified.before, verified.after))
    print_indented(console, f"then: {_count(verified.left)}")
    if verified.flags:
        console.print(Text("With flags", style="bold"))
        for name, value in verified.flags.items():
            print_indented(console, Text(flags_text({name: value})))
    if verified.mesh is not None:
        console.print(Text("With mesh", style="bold"))
        print_indented(console, Text(f"mesh = {verified.mesh}"))
    if verified.plan is not None:
        console.print(Text("As a plan, for spmd.Plan.from_yaml", style="bold"))
        print_indented(console, Text(verified.plan.to_yaml().rstrip()))
