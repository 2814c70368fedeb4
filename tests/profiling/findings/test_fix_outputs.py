"""Which values a fix annotates."""

import profiling
from profiling._findings.activations import roots
from profiling._findings.case import Case
from profiling._findings.fix_outputs import Root, gradient_of, output_of, outputs_fix
from tests.profiling import field_case, finding_pages, traced_steps
from tests.profiling.compilers import need


def test_an_output_and_its_gradient():
    case = Case(*field_case.compiled())
    up, down = (op for op, _ in case.forward_dots)
    assert output_of(case, up) is up
    gradient = gradient_of(case, up)
    assert gradient is not None and gradient.op_name == "backward/down/mm"
    assert gradient.shape == (1600, 9600)
    last = gradient_of(case, down)
    assert last is not None and last.shape == (1600, 1280)


def test_the_output_of_a_module_comes_after_its_reshapes():
    program = traced_steps.program_of("decoder", traced_steps.FSDP)
    case = Case(program, profiling.compile(program, need("h100:1x8")))
    dots = {name: op for op, name in case.forward_dots}
    op = dots["layers.0.ffn.gate.weight"]
    output = output_of(case, op)
    assert output.scope.module == "layers.0.ffn.gate"
    assert output.shape == (16, 16, 128)


def test_without_a_plain_call_in_the_source_it_is_a_plan():
    case = finding_pages.case("activation-gathered")
    group = [r for r in roots(case) if r is not None]
    fix = outputs_fix(case, "up", group)
    assert fix.code == (
        'plan = plan | spmd.Plan({}, outputs={"up": (("fsdp", "replica"), None)})'
    )
    assert fix.outputs == {"up": (("fsdp", "replica"), None)}
    assert len(fix.change.values) == 2


def test_a_value_inside_a_module_is_no_output_of_a_plan():
    case = finding_pages.case("gradient-all-reduced")  # the model is the layer itself
    ((op, weight),) = case.forward_dots
    split = case.splits.of(op)
    assert split is not None
    fix = outputs_fix(case, "the model", [Root(op, weight, split)])
    assert fix.outputs == {}
    assert fix.code == 'spmd.mark_sharding(output, mesh, ("fsdp", None))'
    assert fix.place.startswith("on what comes out of the model")
