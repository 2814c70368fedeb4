"""Functions are read where they are called, a loop's body once."""

import pytest

from profiling import Change
from profiling._findings.edit import changed
from profiling._step.ops import StepOps
from profiling._step.walk import ARGUMENT, CARRIED, HELD, walk
from spmd._program.stablehlo import as_artifact, edited, main_of, opened
from tests.profiling import judged_steps

LOOP = """
module @step {
  func.func private @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    return %y : tensor<4xf32>
  }
  func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %r:3 = stablehlo.while(%i = %zero, %a = %x, %b = %w)
        : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %c = func.call @twice(%a) : (tensor<4xf32>) -> tensor<4xf32>
      %d = stablehlo.multiply %c, %b : tensor<4xf32>
      stablehlo.return %j, %d, %b : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    }
    %s = stablehlo.subtract %r#1, %r#2 : tensor<4xf32>
    return %s : tensor<4xf32>
  }
}
"""


def test_a_loop_and_a_function():
    with opened(LOOP.encode()) as module:
        found = walk(main_of(module))
        names = [w.name.removeprefix("stablehlo.") for w in found]
        assert names == [
            *(ARGUMENT, ARGUMENT, "constant"),  # x, w, zero
            *(CARRIED, CARRIED, HELD),  # i, a, b
            *("constant", "add", "add", "multiply"),  # one, j, c, d
            *(CARRIED, CARRIED),  # the counter and `a` as the loop leaves them
            *("subtract", "func.return"),
        ]
        assert [n for n, w in enumerate(found) if w.in_loop] == list(range(3, 10))
        assert found[8].operands == (4, 4)  # the function adds what it is given
        assert found[9].operands == (8, 5)
        assert found[11].operands == (9, 0)  # from the body, or from before
        assert found[12].operands == (11, 1)  # `w` goes through the loop as it is


def test_a_module_that_nothing_was_done_to_is_the_same():
    artifact = as_artifact(LOOP)
    assert edited(artifact, lambda main: None) == artifact
    with pytest.raises(ValueError, match="no StableHLO module"):
        edited(b"no module", lambda main: None)


def test_weights_of_a_loop_are_known_by_the_stack_that_they_are_cut_from():
    case = judged_steps.looped()
    dots = [op for op in case.ops.ops if op.is_dot]
    assert [name for _, name in case.forward_dots] == ["up", "down"]
    assert all(op.in_loop for op in dots) and len(dots) == 2
    assert case.ops.input_behind(dots[1].operands[0], ("parameter",)) == ""


def test_a_value_in_a_loop_is_annotated_there():
    case = judged_steps.looped()
    (up, _), _ = case.forward_dots
    change = Change(values=((up.number, ("fsdp", None)),))
    made = StepOps(changed(case.program, change))
    again = made.ops[up.number]
    (placed,) = made.users(again)
    assert placed.sharding == "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
    assert placed.in_loop
    with pytest.raises(ValueError, match="has no operation"):
        carried = next(op for op in case.ops.ops if op.name == CARRIED)
        changed(case.program, Change(before=((carried.number, (None, None)),)))
