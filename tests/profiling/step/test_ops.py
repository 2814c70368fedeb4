"""Operations of a traced step."""

import pytest

from profiling._step.ops import StepOps, read_location
from tests.profiling import field_case, finding_pages


def test_matmuls_with_scopes_lines_and_weights():
    program, _ = field_case.compiled()
    ops = StepOps(program)
    dots = [op for op in ops.ops if op.is_dot]
    assert [op.op_name for op in dots] == [
        "forward/up/mm",
        "forward/down/mm",
        "backward/down/mm",
        "backward/up/mm",
        "backward/down/mm",
    ]
    up = dots[0]
    assert up.shape == (1600, 9600) and up.dtype == "bf16"
    assert up.free == ((0,), (1,))
    assert up.scope.module == "up" and up.scope.phase == "forward"
    assert up.source == f"field_case.py:{up.line}" and up.file.endswith(up.source[:13])
    assert ops.input_behind(up.operands[1], ("parameter",)) == "up.weight"
    assert ops.input_behind(up.operands[1], ("optimizer",)) == ""
    assert ops.input_behind(dots[1].operands[0], ("parameter",)) == ""
    assert repr(up) == f"StepOp({up.number} = dot [1600, 9600] forward/up/mm)"


def test_arguments_come_first_in_order():
    program, _ = field_case.compiled()
    ops = StepOps(program)
    assert len(ops.arguments) == len(program.inputs)
    for op, value in zip(ops.arguments, program.inputs, strict=True):
        assert op.name == "argument" and op.shape == value.shape
        assert ops.ops[op.number] is op


def test_annotations_are_looked_through():
    case = finding_pages.case("wide-dtype")
    dot = next(op for op in case.ops.ops if op.is_dot)
    behind = case.ops.behind(dot.operands[0])
    assert behind.name == "multiply"
    assert dot in list(case.ops.seen_through(behind))
    assert sum(bool(op.sharding) for op in case.ops.ops) == 2


def test_batched_matmuls():
    from tests.profiling import traced_steps

    ops = StepOps(traced_steps.program_of("decoder", traced_steps.FSDP))
    scores = next(op for op in ops.ops if op.is_dot and op.batched[0])
    assert scores.batched == ((0, 1), (0, 1))
    assert scores.contracted == ((3,), (2,))
    assert scores.free == ((2,), (3,))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('loc("w")', ("w", "", 0)),
        ("loc(unknown)", ("", "", 0)),
        ('loc(fused["a/b", "/x/y.py":7:0])', ("a/b", "/x/y.py", 7)),
        ('loc("/x/y.py":7:3)', ("", "/x/y.py", 7)),
    ],
)
def test_locations(text, read):
    assert read_location(text) == read
