import pytest

from profiling._collectives.destinations import destinations, pieces
from profiling._collectives.flow import Flow
from profiling._collectives.origins import Origins
from profiling._hlo.module import Module
from tests.profiling.hlo_files import SUM, entry

ON = "channel_id=1, use_global_device_ids=true, replica_groups=[2,4]<=[8]"
STEP = f"""
w = f32[8] parameter(0)
g = f32[8] sort(w)
norm = f32[] parameter(1)
r = f32[8] all-reduce(g), to_apply=sum, {ON}
n = f32[] all-reduce(norm), to_apply=sum, {ON}
scale = f32[8] broadcast(n), dimensions={{}}
clipped = f32[8] multiply(r, scale)
moment = f32[8] add(clipped, clipped)
next = f32[8] subtract(w, moment)
act = f32[8] all-reduce(g), to_apply=sum, {ON}
used = f32[8] sort(act)
ROOT t = (f32[8], f32[8], f32[], f32[8]) tuple(next, moment, n, used)
"""


def names(module: Module, wanted: dict[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """Results that each collective goes into; wanted are parts of the root."""
    results = [(name, (module.entry.root, index)) for name, index in wanted.items()]
    found = destinations(Flow(module), results)
    return {v[0].name: list(found.of(v)) for v in found.found}


def test_through_clipping_and_the_optimizer() -> None:
    module = entry(STEP, before=SUM)
    assert names(module, {"w": (0,), "m": (1,), "loss": (2,)}) == {
        "r": ["w", "m"],
        "n": ["loss"],
    }


def test_a_chain_of_collectives() -> None:
    """Scattered over one axis, reduced over another."""
    body = f"""
    g = f32[32] parameter(0)
    a = f32[8] reduce-scatter(g), dimensions={{0}}, to_apply=sum, {ON}
    s = f32[8] all-reduce-start(a), to_apply=sum, {ON}
    ROOT d = f32[8] all-reduce-done(s)
    """
    assert names(entry(body, before=SUM), {"w": ()}) == {"s": ["w"], "a": ["w"]}


# As the GPU's compiler joins small all-reduces: a weight, a norm and a bias.
JOINED = f"""
x = f32[4,4] parameter(0)
y = f32[3] parameter(1)
w = f32[4,4] sort(x)
b = f32[3] sort(y)
n = f32[] constant(1)
f = f32[20] fusion(w, n, b), kind=kLoop, calls=join
s = f32[20] all-reduce-start(f), to_apply=sum, {ON}
d = f32[20] all-reduce-done(s)
ROOT c = (f32[4,4], f32[], f32[3]) fusion(d), kind=kLoop, calls=apart
"""
FUSIONS = (
    SUM
    + """
join {
  p0 = f32[4,4] parameter(0)
  p1 = f32[] parameter(1)
  p2 = f32[3] parameter(2)
  b0 = f32[16] bitcast(p0)
  b1 = f32[1] bitcast(p1)
  ROOT j = f32[20] concatenate(b0, b1, p2), dimensions={0}
}
apart {
  p3 = f32[20] parameter(0)
  s0 = f32[16] slice(p3), slice={[0:16]}
  r0 = f32[4,4] reshape(s0)
  s1 = f32[4] slice(p3), slice={[16:20]}
  s2 = f32[1] slice(s1), slice={[0:1]}
  r2 = f32[] reshape(s2)
  s3 = f32[3] slice(s1), slice={[1:4]}
  ROOT u = (f32[4,4], f32[], f32[3]) tuple(r0, r2, s3)
}
"""
)


def test_arrays_that_are_joined_for_the_way() -> None:
    module = entry(JOINED, before=FUSIONS)
    start = module.instruction("s")
    parts = pieces(Origins(module), start.operands[0])
    assert [(p.name, cut) for p, cut in parts] == [
        ("b0", (0, 16)),
        ("b1", (16, 17)),
        ("p2", (17, 20)),
    ]
    root = module.entry.root
    wanted = [("w", (root, (0,))), ("norm", (root, (1,))), ("b", (root, (2,)))]
    found = destinations(Flow(module), wanted)
    assert [found.of((start, ()), cut) for _, cut in parts] == [
        ("w",),
        ("norm",),
        ("b",),
    ]
    assert found.of((start, ())) == ("w", "norm", "b")


def test_joined_and_cut_without_a_collective_between() -> None:
    """A GPU's horizontal fusion: unrelated results share one array."""
    body = f"""
    x = f32[4] parameter(0)
    a = f32[4] all-reduce(x), to_apply=sum, {ON}
    b = f32[4] all-gather(x), dimensions={{0}}, {ON}
    j = f32[8] concatenate(a, b), dimensions={{0}}
    l = f32[4] slice(j), slice={{[0:4]}}
    r = f32[4] slice(j), slice={{[4:8]}}
    ROOT t = (f32[4], f32[4]) tuple(l, r)
    """
    module = entry(body, before=SUM)
    assert names(module, {"l": (0,), "r": (1,)}) == {"a": ["l"], "b": ["r"]}


@pytest.mark.parametrize(
    "line", ["f32[8] negate(x)", "f32[2,4] reshape(x)", "f32[8] parameter(1)"]
)
def test_what_is_not_joined(line: str) -> None:
    module = entry(f"x = f32[8] parameter(0)\nROOT y = {line}")
    y = module.instruction("y")
    assert pieces(Origins(module), y) == [(y, None)]
