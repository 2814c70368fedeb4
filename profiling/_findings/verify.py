"""`verify`: compile a step again with each fix, and with all that help."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from profiling._compiling.anyway import compile_anyway
from profiling._compiling.compiled import CompileError, FlagValue
from profiling._findings.edit import changed, noted
from profiling._findings.end_plan import plan_of
from profiling._findings.explain import explain
from profiling._findings.finding import Figures, Finding, Fix, Proof
from profiling._findings.meshes import mesh_code
from profiling._schedule import Schedule
from profiling._step.ops import StepOps
from profiling._targets.target import Target
from spmd._plans.plan import Plan
from spmd._program.program import Program

Progress = Callable[[str, float], None]
_AS_PLANNED = ("activation-gathered", "batch-replicated")
"""Kinds whose fix does what the specs ask for: worth offering where it saves memory or
bytes, though it takes longer at this size of batch."""

_FOR_TIME = ("tensor-across-hosts", "weights-across-hosts")
"""Kinds that are a problem for the time that they take, and for nothing else."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What compiling again showed.

    Attributes:
        findings: Those given; a fix that was tried has its proof, one that does not
            help is gone.
        fixes: Texts of the fixes that go together, in the order they were put in.
        flags: XLA flags that these set.
        before: The step as it is.
        after: The step with all of these.
        program: That step.
        plan: Its specs, for `spmd.shard_module`; None where no fix changes any.
        mesh: Python that makes its mesh; None where no fix changes it.
        left: Findings of that step.
    """

    findings: tuple[Finding, ...]
    fixes: tuple[str, ...]
    flags: Mapping[str, FlagValue]
    before: Figures
    after: Figures
    program: Program
    plan: Plan | None
    mesh: str | None
    left: tuple[Finding, ...]


def verify(
    program: Program,
    schedule: Schedule,
    findings: Sequence[Finding],
    *,
    most: int = 6,
    progress: Progress | None = None,
) -> Verified:
    """Try the fixes of findings.

    Args:
        program: The traced step.
        schedule: What it was compiled to, for a target.
        findings: From `explain`.
        most: Fixes to try alone at most, those of problems first; each takes a
            compile, and those that help one more, together with those before it.
        progress: See `profiling.compile`.

    Returns:
        Findings with proofs, and the step with all fixes that help.

    Raises:
        ValueError: A schedule without a target, such as that of a dump.
    """
    target = schedule.target
    if target is None or schedule.compiled is None:
        raise ValueError(
            f"{schedule.name}: a schedule that was not compiled here cannot be "
            f"compiled again; give one of profiling.compile(program, target)"
        )
    trial = _Trial(target, progress)
    judged: dict[int, Finding] = {}
    for found in sorted(findings, key=lambda f: (_is_by_flags(f), not f.is_problem)):
        to_try = found.fixes[: max(0, most - trial.num_tried)]
        if to_try:
            judged[id(found)] = trial.judged(program, schedule, found, to_try)
    helping = [f for f in judged.values() if f.fix is not None]
    helping.sort(key=_order)
    end = trial.together(program, schedule, helping)
    left = explain(end.program, end.schedule)
    return Verified(
        findings=tuple(
            _with_end(judged.get(id(f), f), end.fixes, left) for f in findings
        ),
        fixes=tuple(fix.text for fix in end.fixes),
        flags=MappingProxyType({n: v for f in end.fixes for n, v in f.change.flags}),
        before=figures(schedule),
        after=figures(end.schedule),
        program=end.program,
        plan=plan_of(end.program)
        if any(fix.parameters or fix.outputs for fix in end.fixes)
        else None,
        mesh=None
        if end.program.mesh is None or end.program.mesh == program.mesh
        else mesh_code(end.program.mesh),
        left=left,
    )


@dataclass(frozen=True, slots=True)
class _End:
    program: Program
    schedule: Schedule
    fixes: tuple[Fix, ...] = ()


class _Trial:
    """Compiles changed programs for one target."""

    def __init__(
        self,
        target: Target,
        progress: Progress | None,
    ) -> None:
        self._target = target
        self._progress = progress
        self._made: dict[tuple[object, ...], tuple[Program, Schedule]] = {}

    @property
    def num_tried(self) -> int:
        """Compiles so far; one that several findings ask for counts once."""
        return len(self._made)

    def judged(
        self,
        program: Program,
        schedule: Schedule,
        found: Finding,
        to_try: Sequence[Fix],
    ) -> Finding:
        """A finding with the fix that saves most, proven, or without one."""
        proven: list[Fix] = []
        tried: list[str] = []
        is_cheaper = False
        for fix in to_try:
            try:
                proof = self._proof(program, schedule, found, fix)
            except (CompileError, ValueError) as error:
                tried.append(f"{fix.text}: {str(error).splitlines()[0]}")
                continue
            if helps(found, proof):
                proven.append(dataclasses.replace(fix, proof=proof))
            else:
                tried.append(f"{fix.text}: {_verdict(proof)}")
                is_slower = found.kind in _FOR_TIME and "time" not in proof.gains
                is_cheaper |= proof.gone and (is_slower or not proof.gains)
        if proven:
            return found.with_fix(min(proven, key=_saved), tried=tuple(tried))
        found = found.with_fix(None, tried=tuple(tried))
        if is_cheaper:  # as it is, it is the cheaper way
            found = dataclasses.replace(found, severity="note")
        return found

    def _proof(
        self, program: Program, schedule: Schedule, found: Finding, fix: Fix
    ) -> Proof:
        made, after = self._apply(program, schedule, fix)
        same = _same(explain(made, after), found)
        return Proof(
            figures(schedule),
            figures(after),
            gone=not same,
            smaller=any(_costs(f) < _costs(found) for f in same),
        )

    def together(
        self, program: Program, schedule: Schedule, helping: Sequence[Finding]
    ) -> _End:
        """Put in one fix after the other, as long as each still helps."""
        end = _End(program, schedule)
        for wanted in helping:
            fix = wanted.fix
            now = [f for f in explain(end.program, end.schedule) if _is(f, wanted)]
            if fix is None or not now:
                continue  # another fix removed it
            found = now[0]
            # Numbers of operations are another's after a change: take this step's own.
            fix = next((f for f in found.fixes if f.text == fix.text), None)
            if fix is None:
                continue
            try:
                proof = self._proof(end.program, end.schedule, found, fix)
                made, after = self._apply(end.program, end.schedule, fix)
            except (CompileError, ValueError):
                continue
            if helps(found, proof):
                end = _End(made, after, (*end.fixes, fix))
        return end

    def _apply(
        self, program: Program, schedule: Schedule, fix: Fix
    ) -> tuple[Program, Schedule]:
        key = (program.fingerprint, *schedule.flags.items(), fix.change)
        key = (*key, *fix.outputs.items())
        if key not in self._made:
            self._made[key] = self._compiled(program, schedule, fix)
        return self._made[key]

    def _compiled(
        self, program: Program, schedule: Schedule, fix: Fix
    ) -> tuple[Program, Schedule]:
        made = changed(program, fix.change)
        if fix.outputs:
            shapes = _shapes(program, fix)
            notes = noted(made, fix.outputs, shapes)
            made = dataclasses.replace(made, annotations=notes, module_digest="")
        flags = {**schedule.flags, **dict(fix.change.flags)}
        return made, compile_anyway(
            made, self._target, flags=flags, progress=self._progress
        )


def _with_end(found: Finding, fixes: Sequence[Fix], left: Sequence[Finding]) -> Finding:
    """Say of a finding without a fix of its own whose fix removes it too."""
    still = {(f.kind, f.severity) for f in left}
    if found.fix is not None or not fixes or (found.kind, found.severity) in still:
        return found
    by_specs = [f for f in fixes if not f.change.flags] or fixes
    return dataclasses.replace(found, goes_with=" and ".join(f.text for f in by_specs))


def _shapes(program: Program, fix: Fix) -> dict[str, tuple[int, ...]]:
    """Shape of each module output that a fix annotates."""
    ops = StepOps(program).ops
    places = [ops[number] for number, _ in fix.change.values]
    return {
        op.scope.module: op.shape
        for op in reversed(places)
        if op.scope.module in fix.outputs and op.scope.phase != "backward"
    }


def helps(found: Finding, proof: Proof) -> bool:
    """Whether a fix is worth offering; docs/findings/README.md says it in words.

    Args:
        found: What it is to remove.
        proof: What compiling again showed.

    Returns:
        True where the step takes less time, or no more time and less memory or fewer
        bytes. It may take longer where memory is what lacks, and where it does what
        the specs of weights and batch ask for: with more rows that is the faster way.
    """
    before, after = proof.before.over_bytes, proof.after.over_bytes
    if after > before:
        return False
    if after < before:
        return True
    if not proof.gone and not proof.smaller:
        return False  # what is gained has nothing to do with it
    if "time" in proof.gains:
        return proof.gone or "bytes" in proof.gains or "memory" not in proof.costs
    if not proof.gone or not proof.gains:
        return False
    return "time" not in proof.costs or found.kind in _AS_PLANNED


def figures(schedule: Schedule) -> Figures:
    """What a step costs a device.

    Args:
        schedule: The step.

    Returns:
        Its figures.
    """
    by_role = {t.key: t.step_wire_bytes for t in schedule.totals("role")}
    line = schedule.timeline
    return Figures(
        wire_bytes=schedule.wire_bytes,
        memory_bytes=schedule.memory.total_bytes,
        step_s=schedule.step_s,
        weight_gather_bytes=by_role.get("weight gather", 0),
        activation_bytes=sum(
            by_role.get(r, 0) for r in ("activation", "reshard", "input")
        ),
        flops=None if line is None else line.flops,
        over_bytes=schedule.over_bytes,
    )


def _is_by_flags(found: Finding) -> bool:
    """What flags may help is tried last: it is of the step, not of its annotations."""
    return all(fix.change.flags for fix in found.fixes)


def _verdict(proof: Proof) -> str:
    if not proof.gone and not proof.gains:
        return "it stays as it was"
    better = f"less {', '.join(proof.gains)}" if proof.gains else "nothing gained"
    if not proof.gone and not proof.smaller:
        better = f"it stays as it was; {better}"
    worse = f", but more {', '.join(proof.costs)}" if proof.costs else ""
    return better + worse


def _order(found: Finding) -> tuple[bool, float]:
    """Most time saved first, but flags last: they are for the step as it then is."""
    return _is_by_flags(found), 0.0 if found.fix is None else _saved(found.fix)


def _saved(fix: Fix) -> float:
    proof = fix.proof
    if proof is None:
        return 0.0
    return (proof.after.step_s or 0.0) - (proof.before.step_s or 0.0)


def _same(findings: Sequence[Finding], found: Finding) -> list[Finding]:
    """The same finding, as grave as before, among others."""
    return [
        f
        for f in findings
        if f.severity == found.severity and (_is(f, found) or _is_rest(f, found))
    ]


def _is_rest(one: Finding, other: Finding) -> bool:
    """Whether one tells of some of the other's parameters that a fix left behind."""
    by_names = one.kind == other.kind == "gradient-per-micro-batch"
    return by_names and bool(set(one.tensors) & set(other.tensors))


def _costs(found: Finding) -> tuple[float, int, int]:
    exposed = round(found.exposed_s or 0.0, 9)
    return exposed, found.wire_bytes, found.held_bytes


def _is(one: Finding, other: Finding) -> bool:
    return (one.kind, one.where) == (other.kind, other.where)
