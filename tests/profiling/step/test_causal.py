"""Attention as it is traced, in HLO text."""

import pytest

from profiling._hlo.module import Module
from profiling._step.causal import causal_sizes, is_causal
from tests.profiling.hlo_files import parse


def attention(compare: str = "GE", moved: str = "broadcast(rows)", n: int = 16):
    return parse(f"""HloModule m
ENTRY e {{
  q = f32[2,4,{n},8] parameter(0)
  k = f32[2,4,8,{n}] parameter(1)
  w = f32[8,32] parameter(2)
  s = s32[] parameter(3)
  x = f32[2,{n},{n}] parameter(4)
  one = s32[] constant(1)
  rows = s32[{n}] iota(), iota_dimension=0
  columns = s32[{n}] iota(), iota_dimension=0
  noise = s32[{n}] negate(columns)
  a = s32[{n},{n}] {moved}, dimensions={{0}}
  b = s32[{n},{n}] broadcast(columns), dimensions={{1}}
  mask = pred[{n},{n}] compare(a, b), direction={compare}
  scores = f32[2,4,{n},{n}] dot(q, k), lhs_batch_dims={{0,1}}, rhs_batch_dims={{0,1}}, lhs_contracting_dims={{3}}, rhs_contracting_dims={{2}}
  values = f32[2,4,{n},8] dot(scores, q), lhs_batch_dims={{0,1}}, rhs_batch_dims={{0,1}}, lhs_contracting_dims={{3}}, rhs_contracting_dims={{2}}
  gradient = f32[2,4,8,{n}] dot(q, scores), lhs_batch_dims={{0,1}}, rhs_batch_dims={{0,1}}, lhs_contracting_dims={{2}}, rhs_contracting_dims={{2}}
  dense = f32[2,4,{n},32] dot(q, w), lhs_contracting_dims={{3}}, rhs_contracting_dims={{0}}
  square = f32[2,{n},2,{n}] dot(x, x), lhs_contracting_dims={{2}}, rhs_contracting_dims={{2}}
  ROOT r = f32[2,4,{n},32] add(dense, dense)
}}
""")  # noqa: E501 - a line of HLO is a line


def causal_dots(module: Module) -> list[str]:
    sizes = causal_sizes(module)
    dots = (i for i in module.instructions() if i.opcode == "dot")
    return [dot.name for dot in dots if is_causal(dot, sizes)]


@pytest.mark.parametrize("direction", ["GE", "GT", "LE", "LT"])
def test_products_of_attention_and_their_gradients(direction):
    module = attention(direction)
    assert causal_sizes(module) == {16}
    assert causal_dots(module) == ["scores", "values", "gradient"]


@pytest.mark.parametrize("direction", ["EQ", "NE"])
def test_a_comparison_without_order_masks_nothing(direction):
    assert causal_dots(attention(direction)) == []


@pytest.mark.parametrize(
    ("moved", "is_position"),
    [
        ("add(b, b)", True),
        ("broadcast(one)", False),  # no position: a constant
        ("broadcast(s)", False),
        ("broadcast(noise)", False),  # computed in another way
    ],
)
def test_both_sides_must_be_positions(moved, is_position):
    if moved == "add(b, b)":
        moved = "broadcast(rows)"
    assert bool(causal_sizes(attention(moved=moved))) == is_position


def test_a_mask_of_another_length_is_not_this_attentions():
    module = attention()
    scores = next(i for i in module.instructions() if i.name == "scores")
    assert is_causal(scores, {16})
    assert not is_causal(scores, {32})
    assert causal_sizes(attention(n=1)) == frozenset()
