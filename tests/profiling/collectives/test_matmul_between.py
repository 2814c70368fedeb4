import pytest

from profiling._collectives.matmul_between import MatmulBetween
from profiling._collectives.ops import collective_ops
from profiling._targets.target import Target
from profiling._timeline.op_cost import OpCosts
from tests.profiling.hlo_files import DATA, content, entry, parse

HEADER = ", is_scheduled=true, num_partitions=4"
START = (
    "s = (f32[8,8], f32[32,8]) all-gather-start(x), dimensions={0}, channel_id=1,"
    " use_global_device_ids=true, replica_groups=[1,4]<=[4]\n"
)
DONE = "e = f32[32,8] all-gather-done(s)\n"
DOT = "m = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
ADD = "a = f32[8,8] add(x, x)\n"
CALLED = "c {\n  x = f32[8,8] parameter(0)\n  ROOT " + DOT + "}\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (START + DOT + DONE, True),
        (DOT + START + ADD + DONE, False),
        (START + ADD + DONE + DOT, False),
        (START + "k = f32[8,8] call(x), to_apply=c\n" + DONE, True),
        (START + "k = f32[8,8] fusion(x), kind=kCustom, calls=c\n" + DONE, True),
    ],
)
def test_what_stands_between(lines, expected):
    body = "x = f32[8,8] parameter(0)\n" + lines + "ROOT r = f32[8,8] negate(x)"
    module = entry(body, header=HEADER, before=CALLED)
    (op,) = collective_ops(module)
    between = MatmulBetween(module, OpCosts(module, Target.parse("cpu:4")))
    assert between(op) is expected


def test_fusions_of_a_tpu_carry_collectives_beside_matmuls():
    module = parse(content(DATA / "tpu_v5e_fused.txt.gz"))
    between = MatmulBetween(module, OpCosts(module, Target.parse("v5e:2x4")))
    found = {op.start.name: between(op) for op in collective_ops(module)}
    assert found["async-collective-start"]
    assert sum(found.values()) == 1
