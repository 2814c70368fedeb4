import pytest

from profiling._collectives.ops import collective_ops
from tests.profiling.hlo_files import entry

RING = "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
BODY = """
cond {{
  p = (f32[8,8], s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=1
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}}
mul {{
  x = f32[8,8] parameter(0)
  ROOT d = f32[8,8] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}},
    metadata={{op_name="layer/matmul"}}
}}
{body} {{
  p = (f32[8,8], s32[]) parameter(0)
  x = f32[8,8] get-tuple-element(p), index=0
  i = s32[] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  q = f32[8,8] collective-permute(x), channel_id=1, {ring},
    metadata={{op_name="{scope}"}}
  m = f32[8,8] fusion(q), kind=kOutput, calls=mul
  ROOT t = (f32[8,8], s32[]) tuple(m, j)
}}
"""
ENTRY = f"""
x = f32[8,8] parameter(0)
zero = s32[] constant(0)
a = f32[8,8] collective-permute(x), channel_id=2, {RING}
b = f32[8,8] bitcast(a)
s = (f32[8,8], s32[]) tuple(b, zero)
w = (f32[8,8], s32[]) while(s), condition=cond, body=%s
y = f32[8,8] get-tuple-element(w), index=0
c = f32[8,8] collective-permute(y), channel_id=3, {RING}
z = f32[8,8] negate(c)
ROOT d = f32[8,8] collective-permute(z), channel_id=4, {RING}
"""


@pytest.mark.parametrize(
    ("body", "scope", "is_ring"),
    [
        ("windowed_dot_general_body_ag.clone", "", True),
        ("body", "layer/matmul", True),
        ("body", "layer/ppermute", False),  # a ring that the user wrote
        ("body", "", False),
    ],
)
def test_rings_and_their_ends(body: str, scope: str, is_ring: bool) -> None:
    before = BODY.format(body=body, ring=RING, scope=scope)
    module = entry(ENTRY % body, header=", num_partitions=4", before=before)
    found = {o.instruction.name: o for o in collective_ops(module)}
    assert found["q"].runs.times == 3
    loops = {name: o.loop for name, o in found.items()}
    ring = "w" if is_ring else ""
    assert loops == {"q": ring, "a": ring, "c": ring, "d": ""}
    assert found["a"].form == ("windowed" if is_ring else "plain")
