"""What xprof is told of an instruction."""

import pytest

from profiling._capture.op_stats import framework_op, op_stats, op_text
from profiling._hlo.text import read_text

HLO = """
HloModule step, is_scheduled=true

%body (p.0: f32[8,8], p.1: f32[8,8]) -> f32[8,8] {
  %p.0 = f32[8,8]{1,0} parameter(0)
  %p.1 = f32[8,8]{1,0} parameter(1)
  %dot.2 = f32[8,8]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %add.3 = f32[8,8]{1,0} add(%dot.2, %p.0)
}

ENTRY %main (a: f32[8,8], b: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  %b = f32[8,8]{1,0} parameter(1)
  %fused = f32[8,8]{1,0} fusion(%a, %b), kind=kOutput, calls=%body, metadata={op_name="jit(step)/layer/dot_general" source_file="model.py" source_line=12}
  %copy.1 = f32[8,8]{1,0} copy(%fused)
  %all-reduce.1 = f32[8,8]{1,0} all-reduce(%copy.1), replica_groups={}, to_apply=%body, metadata={op_name="(update/sum:update/add)"}
  ROOT %tanh.1 = f32[8,8]{1,0} tanh(%all-reduce.1)
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def module():
    return read_text(HLO.encode().splitlines(), source="step.txt")


def test_a_fusion(module):
    found = module.instruction("fused")
    assert op_text(found) == (
        "%fused = f32[8,8] fusion(f32[8,8] %a, f32[8,8] %b), kind=kOutput, calls=%body"
    )
    assert op_stats(module, found) == {
        "hlo_category": "output fusion",
        "flops": 2 * 8**3 + 64,
        "bytes_accessed": 3 * 4 * 64,
        "tf_op": "jit(step)/layer/dot_general:dot_general",
        "source": "model.py:12",
    }


@pytest.mark.parametrize(
    ("name", "category", "flops", "num_bytes"),
    [
        ("copy.1", "data formatting", 0, 512),
        ("all-reduce.1", "all-reduce", 0, 512),
        ("tanh.1", "tanh", 64, 512),
    ],
)
def test_others(module, name, category, flops, num_bytes):
    found = op_stats(module, module.instruction(name))
    assert (found["hlo_category"], found["flops"]) == (category, flops)
    assert found["bytes_accessed"] == num_bytes


def test_many_operands():
    operands = ", ".join(f"%p.{i}" for i in range(11))
    parameters = ", ".join(f"p.{i}: f32[]" for i in range(11))
    lines = [f"  %p.{i} = f32[] parameter({i})" for i in range(11)]
    text = "\n".join(
        [
            "HloModule many",
            f"ENTRY %main ({parameters}) -> (f32[]) {{",
            *lines,
            f"  ROOT %t = (f32[]) tuple({operands})",
            "}",
        ]
    )
    module = read_text(text.encode().splitlines(), source="many.txt")
    found = op_text(module.instruction("t"))
    assert found.endswith("f32[] %p.7, ... 3 more)")


@pytest.mark.parametrize(
    ("op_name", "opcode", "expected"),
    [
        ("forward/0/addmm", "dot", "forward/0/addmm:addmm"),
        ("(a/mm:b/mean)", "all-reduce", "(a/mm;b/mean):all_reduce"),
        ("jit(f)/reduce_sum;jit(f)/mul", "fusion", "jit(f)/reduce_sum;jit(f)/mul:mul"),
        ("aten__mm.12", "dot", "aten__mm.12:dot"),
    ],
)
def test_names_of_a_framework_have_one_colon(op_name, opcode, expected):
    assert framework_op(op_name, opcode) == expected
