"""Specs of a step as a plan."""

from profiling._findings.end_plan import plan_of
from tests.profiling import finding_pages, traced_steps


def test_layers_that_are_alike_have_one_pattern():
    program = traced_steps.program_of("decoder", traced_steps.TENSOR)
    plan = plan_of(program)
    specs = {rule.pattern: rule.spec for rule in plan.rules if not rule.outputs_only}
    assert specs["layers.*.attention.q.weight"] == ("tensor", "fsdp")
    assert not any(".0." in pattern or ".1." in pattern for pattern in specs)
    outputs = {rule.pattern for rule in plan.rules if rule.outputs_only}
    assert "layers.*" in outputs


def test_the_plan_resolves_to_the_specs_it_came_from():
    program = traced_steps.program_of("decoder", traced_steps.TENSOR)
    assert program.mesh is not None
    parameters = {v.name: v for v in program.inputs if v.role == "parameter"}
    shapes = {name: v.shape for name, v in parameters.items()}
    modules = {a.module for a in program.annotations}
    resolved = plan_of(program).resolve(program.mesh, shapes, modules)
    for row in resolved.parameters:
        spec = parameters[row.name].spec
        assert row.spec == (spec or (None,) * len(row.spec)), row.name


def test_what_is_whole_has_no_pattern():
    program, _ = finding_pages.compiled("large-replicated")
    assert [r.pattern for r in plan_of(program).rules] == ["head.weight"]
