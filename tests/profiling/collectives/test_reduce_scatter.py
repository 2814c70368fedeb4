import pytest

from profiling._collectives.ops import CollectiveOp, collective_ops
from tests.profiling.hlo_files import SUM, entry

FOURS = "channel_id=1, use_global_device_ids=true, replica_groups=[2,4]<=[8]"
X = "x = f32[8,16] parameter(0)\n"


def only(body: str, *, before: str = SUM) -> CollectiveOp:
    (found,) = collective_ops(entry(body, header=", num_partitions=8", before=before))
    return found


SLICED = """{x}
i = u32[] partition-id()
c = s32[] convert(i)
k = s32[] constant(0)
r = f32[8,16] all-reduce(x), to_apply=sum, {groups}
{rest}"""


@pytest.mark.parametrize(
    ("rest", "is_scatter"),
    [
        ("ROOT y = f32[2,16] dynamic-slice(r, c, k), dynamic_slice_sizes={2,16}", True),
        # through what only moves elements
        ("b = f32[128] bitcast(r)\n"
         "ROOT y = f32[32] dynamic-slice(b, c), dynamic_slice_sizes={32}", True),
        # half of it, on four devices
        ("ROOT y = f32[4,16] dynamic-slice(r, c, k), dynamic_slice_sizes={4,16}",
         False),
        # the same part on each
        ("ROOT y = f32[2,16] dynamic-slice(r, k, k), dynamic_slice_sizes={2,16}",
         False),
        # all of it is used too
        ("y = f32[2,16] dynamic-slice(r, c, k), dynamic_slice_sizes={2,16}\n"
         "ROOT z = f32[8,16] negate(r)", False),
        ("ROOT y = (f32[8,16]) tuple(r)", False),
    ],
)  # fmt: skip
def test_an_all_reduce_that_is_sliced(rest: str, is_scatter: bool) -> None:
    op = only(SLICED.format(x=X, groups=FOURS, rest=rest))
    if is_scatter:
        assert (op.kind, op.form) == ("reduce-scatter", "all-reduce + slice")
        assert (op.output_bytes, op.wire_bytes) == (128, 768)  # moved as an all-reduce
    else:
        assert (op.kind, op.form, op.wire_bytes) == ("all-reduce", "plain", 768)


FUSED = """
f {
  v = f32[8,16] parameter(0)
  n = s32[] parameter(1)
  k = s32[] constant(0)
  y = f32[2,16] dynamic-slice(v, n, k), dynamic_slice_sizes={2,16}
  %s
}
"""


@pytest.mark.parametrize(
    ("index", "last", "is_scatter"),
    [
        ("c", "ROOT z = f32[2,16] negate(y)", True),
        ("k", "ROOT z = f32[2,16] negate(y)", False),
        ("c", "ROOT z = (f32[2,16], f32[8,16]) tuple(y, v)", False),
    ],
)
def test_a_slice_inside_of_a_fusion(index: str, last: str, is_scatter: bool) -> None:
    rest = f"ROOT y = f32[2,16] fusion(r, {index}), kind=kLoop, calls=f"
    body = SLICED.format(x=X, groups=FOURS, rest=rest)
    op = only(body, before=SUM + FUSED % last)
    assert (op.kind == "reduce-scatter") is is_scatter


def test_every_array_of_a_tuple_must_be_sliced() -> None:
    body = (
        f"{X}w = f32[4] parameter(1)\ni = u32[] partition-id()\nk = s32[] constant(0)\n"
        f"r = (f32[8,16], f32[4]) all-reduce(x, w), to_apply=sum, {FOURS}\n"
        "a = f32[8,16] get-tuple-element(r), index=0\n"
        "b = f32[4] get-tuple-element(r), index=1\n"
        "c = f32[2,16] dynamic-slice(a, i, k), dynamic_slice_sizes={2,16}\n"
    )
    whole = only(f"{body}ROOT d = f32[4] negate(b)")
    assert whole.kind == "all-reduce"
    sliced = only(
        f"{body}ROOT d = f32[1] dynamic-slice(b, i), dynamic_slice_sizes={{1}}"
    )
    assert (sliced.kind, sliced.output_bytes) == ("reduce-scatter", 132)
