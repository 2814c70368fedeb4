import pytest

from profiling._collectives.flow import Flow, Value
from profiling._hlo.module import Module
from tests.profiling.hlo_files import SUM, entry

ON = "channel_id=1, use_global_device_ids=true, replica_groups=[2,4]<=[8]"
X = "x = f32[8,16] parameter(0)\ny = f32[8,16] parameter(1)\n"


def names(values: tuple[Value, ...]) -> list[str]:
    """``name`` or ``name[index]`` of each."""
    return [i.name + "".join(f"[{n}]" for n in index) for i, index in values]


def before(module: Module, name: str, index: tuple[int, ...] = ()) -> list[str]:
    way, values = Flow(module).before((module.instruction(name), index))
    assert (way == "on") == bool(values)
    return names(values) or [way]


@pytest.mark.parametrize(
    ("line", "index", "wanted"),
    [
        ("f32[8,16] add(x, y)", (), ["x", "y"]),
        ("bf16[8,16] convert(x)", (), ["x"]),
        ("f32[4,16] slice(x), slice={[0:4],[0:16]}", (), ["x"]),
        ("f32[16,16] concatenate(x, y), dimensions={0}", (), ["x", "y"]),
        ("f32[8,16] select(p, x, y)", (), ["x", "y"]),
        ("f32[8,16] clamp(s, x, s)", (), ["x"]),
        ("f32[8,16] dynamic-update-slice(x, y, i, i)", (), ["x", "y"]),
        ("f32[8,16] broadcast(s), dimensions={}", (), ["constant"]),
        ("f32[1,8,16] broadcast(x), dimensions={1,2}", (), ["x"]),
        ("f32[8] reduce(x, s), dimensions={1}, to_apply=sum", (), ["computed"]),
        ("f32[8,16] reduce(z, s), dimensions={0}, to_apply=sum", (), ["z"]),
        ("f32[8,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
         (), ["computed"]),
        ("f32[8,16] iota(), iota_dimension=0", (), ["constant"]),
        ("(f32[8,16], f32[8,16]) tuple(x, y)", (1,), ["y"]),
        ("(f32[8,16], f32[8,16]) tuple(x, y)", (), ["computed"]),
        ("(f32[8,16], f32[8,16]) tuple(x, y)", (7,), ["computed"]),
        (f"f32[32,16] all-gather(x), dimensions={{0}}, {ON}", (), ["x"]),
        (f"(f32[32,16], f32[32,16]) all-gather(x, y), dimensions={{0}}, {ON}",
         (1,), ["y"]),
        (f"(f32[8,16], f32[8,16]) all-reduce-start(x, y), to_apply=sum, {ON}",
         (1,), ["y"]),
        (f"(f32[8,16], f32[32,16]) all-gather-start(x), dimensions={{0}}, {ON}",
         (1,), ["x"]),
        (f"((f32[8,16], f32[8,16]), (f32[32,16], f32[32,16])) all-gather-start(x, y),"
         f" dimensions={{0}}, {ON}", (1, 1), ["y"]),
        ("(f32[8,16], f32[8,16], u32[], u32[]) collective-permute-start(x),"
         " source_target_pairs={{0,1}}", (1,), ["x"]),
        ("(f32[8,16], f32[8,16], u32[], u32[]) collective-permute-start(x),"
         " source_target_pairs={{0,1}}", (2,), ["constant"]),
        ("(f32[8,16], f32[8,16], u32[]) copy-start(x)", (0,), ["x"]),
        ('f32[16,16] custom-call(x, y), custom_call_target="ConcatBitcast"',
         (), ["x", "y"]),
        ('f32[8,16] custom-call(x), custom_call_target="ZeroCrop"', (), ["x"]),
        ('f32[16,16] custom-call(), custom_call_target="AllocateBuffer"',
         (), ["constant"]),
        ('f32[8,8] custom-call(x, y), custom_call_target="__cublas$gemm"',
         (), ["computed"]),
        ("f32[8,16] scatter(x, n, y), to_apply=sum, update_window_dims={},"
         " inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1},"
         " index_vector_dim=1", (), ["x"]),
        ("f32[8,16] parameter(7)", (), ["input"]),
    ],
)  # fmt: skip
def test_one_step(line: str, index: tuple[int, ...], wanted: list[str]) -> None:
    body = (
        f"{X}s = f32[] parameter(2)\np = pred[8,16] parameter(3)\n"
        "z = f32[1,8,16] parameter(4)\ni = s32[] parameter(5)\n"
        f"n = s32[8,2] parameter(6)\nROOT r = {line}"
    )
    assert before(entry(body, before=SUM), "r", index) == wanted


@pytest.mark.parametrize(
    ("done", "index", "wanted"),
    [
        ("all-reduce-done", (0,), ["a[0]"]),
        ("copy-done", (), ["a[0]"]),
        ("all-gather-done", (), ["a[1]"]),
        ("all-gather-done", (2,), ["a[1][2]"]),
        ("slice-done", (), ["a[1]"]),
        ("all-gather-update", (1,), ["a[1]"]),
    ],
)
def test_ends(done: str, index: tuple[int, ...], wanted: list[str]) -> None:
    body = f"a = (f32[8], f32[8]) parameter(0)\nROOT d = f32[8] {done}(a)"
    assert before(entry(body), "d", index) == wanted


CALLED = """
inner {
  a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  c = f32[8] negate(a)
  ROOT t = (f32[8], f32[8]) tuple(b, c)
}
cond {
  p = (f32[8], s32[]) parameter(0)
  ROOT k = pred[] constant(true)
}
body {
  q = (f32[8], s32[]) parameter(0)
  e = f32[8] get-tuple-element(q), index=0
  i = s32[] get-tuple-element(q), index=1
  n = f32[8] negate(e)
  ROOT u = (f32[8], s32[]) tuple(n, i)
}
left {
  l = f32[8] parameter(0)
  ROOT m = f32[8] negate(l)
}
right {
  ROOT o = f32[8] parameter(0)
}
wrapped {
  w = f32[8] parameter(0)
  ROOT v = f32[4] slice(w), slice={[0:4]}
}
"""
CALLS = """
x = f32[8] parameter(0)
y = f32[8] parameter(1)
j = s32[] parameter(2)
f = (f32[8], f32[8]) fusion(x, y), kind=kLoop, calls=inner
s = (f32[8], s32[]) tuple(x, j)
h = (f32[8], s32[]) while(s), condition=cond, body=body
g = f32[8] conditional(j, x, y), branch_computations={left, right}
as = ((f32[8]), f32[4], s32[]) async-start(x), calls=wrapped
au = ((f32[8]), f32[4], s32[]) async-update(as), calls=wrapped
ROOT ad = f32[4] async-done(au), calls=wrapped
"""


@pytest.mark.parametrize(
    ("name", "index", "wanted"),
    [
        ("f", (1,), ["t[1]"]),
        ("a", (), ["x"]),
        ("b", (), ["y"]),
        ("h", (0,), ["u[0]", "s[0]"]),
        ("q", (0,), ["s[0]", "u[0]"]),
        ("p", (1,), ["s[1]", "u[1]"]),
        ("g", (), ["m", "o"]),
        ("l", (), ["x"]),
        ("o", (), ["y"]),
        ("ad", (), ["au[1]"]),
        ("au", (1,), ["as[1]"]),
        ("as", (1,), ["v"]),
        ("as", (0, 0), ["x"]),
        ("as", (2,), ["constant"]),
        ("w", (), ["x"]),
    ],
)
def test_through_computations(
    name: str, index: tuple[int, ...], wanted: list[str]
) -> None:
    assert before(entry(CALLS, before=CALLED), name, index) == wanted


def test_the_function_of_a_reduction_is_no_way() -> None:
    body = "x = f32[8] parameter(0)\ns = f32[] constant(0)\n"
    body += "ROOT r = f32[] reduce(x, s), dimensions={0}, to_apply=sum"
    assert before(entry(body, before=SUM), "a") == ["computed"]


def test_a_tpus_async_fusions() -> None:
    fusions = f"""
    first {{
      p = f32[8] parameter(0)
      g = f32[64] all-gather(p), dimensions={{0}}, {ON}
      ROOT c = (f32[8], f32[64], u32[]) custom-call(g),
        custom_call_target="AsyncCollectiveStart"
    }}
    last {{
      a = f32[8] parameter(0)
      b = f32[64] parameter(1)
      h = f32[64] all-gather(a), dimensions={{0}}, {ON}
      ROOT d = f32[64] custom-call(a, b, h), custom_call_target="AsyncCollectiveDone"
    }}
    """
    body = """
    x = f32[8] parameter(0)
    s = (f32[8], f32[64], u32[]) fusion(x), kind=kCustom, calls=first
    t = f32[8] get-tuple-element(s), index=0
    u = f32[64] get-tuple-element(s), index=1
    ROOT e = f32[64] fusion(t, u), kind=kCustom, calls=last
    """
    module = entry(body, before=fusions)
    assert before(module, "d") == ["h"]
    assert before(module, "c", (0,)) == ["g"]
    assert before(module, "c", (2,)) == ["constant"]
