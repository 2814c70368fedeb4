"""`plan_of`: the specs of a traced step as a plan that `spmd.shard_module` takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from profiling._findings.why import pattern_of, plan_spec
from profiling._step.ops import StepOps
from spmd._meshes.spec import Spec, spec_axes
from spmd._plans.plan import Plan
from spmd._program.program import Program


def plan_of(program: Program) -> Plan:
    """Write down how a step's parameters and module outputs are split.

    Args:
        program: The traced step.

    Returns:
        A plan; layers that are split alike have one pattern, and what is whole on every
        device has none.
    """
    parameters = {
        v.name: plan_spec(v.name, v.spec or ())
        for v in program.inputs
        if v.role == "parameter"
    }
    modules = {op.scope.module for op in StepOps(program).ops}
    outputs = {a.module: a.spec for a in program.annotations if a.module in modules}
    return Plan(_patterns(parameters), outputs=_patterns(outputs), name="explain")


def _patterns(specs: Mapping[str, Spec]) -> dict[str, Spec]:
    """One pattern for names that differ in numbers only and have one spec."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in specs:
        alike[pattern_of(name)].append(name)
    found: dict[str, Spec] = {}
    for pattern, names in alike.items():
        same = len({specs[n] for n in names}) == 1
        for name in [pattern] if same else names:
            spec = specs[names[0]] if same else specs[name]
            if spec_axes(spec):
                found[name] = spec
    return found
