import pytest

from profiling._collectives.async_pairs import collective_kind, find
from tests.profiling.hlo_files import entry

GATHER = (
    "f32[32] all-gather(p), channel_id=5, dimensions={0}, replica_groups=[1,4]<=[4], "
    "use_global_device_ids=true"
)
PARTS = f"""
first {{
  p = f32[8] parameter(0)
  g = {GATHER}
  ROOT c = (f32[8], f32[32]) custom-call(g), custom_call_target="AsyncCollectiveStart"
}}
step {{
  p = f32[8] parameter(0)
  q = f32[32] parameter(1)
  g = {GATHER}
  m = f32[32] multiply(q, q)
  ROOT t = (f32[8], f32[32], f32[32]) tuple(p, g, m)
}}
last {{
  p = f32[8] parameter(0)
  g = {GATHER}
  ROOT c = f32[32] custom-call(p, g), custom_call_target="AsyncCollectiveDone"
}}
"""
CHAIN = """
x = f32[8] parameter(0)
y = f32[32] parameter(1)
s = (f32[8], f32[32]) fusion(x), kind=kCustom, calls=first
a = f32[8] get-tuple-element(s), index=0
t = (f32[8], f32[32], f32[32]) fusion(a, y), kind=kOutput, calls=step
b = f32[8] get-tuple-element(t), index=0
ROOT d = f32[32] fusion(b), kind=kCustom, calls=last
"""


def test_a_chain_of_fusions_is_one() -> None:
    ((found, _),) = find(entry(CHAIN, before=PARTS))
    assert (found.kind, found.instruction.name, found.inner.name) == (
        "all-gather",
        "g",
        "first",
    )
    assert (found.start.name, found.done and found.done.name) == ("s", "d")
    assert found.is_split


def test_a_chain_without_an_end() -> None:
    body = CHAIN.replace("ROOT d = f32[32] fusion(b), kind=kCustom, calls=last", "")
    ((found, _),) = find(entry(body, before=PARTS.partition("last {")[0]))
    assert found.done is None


def test_a_fused_collective_alone() -> None:
    body = "x = f32[8] parameter(0)\ny = f32[32] parameter(1)\n" + (
        "ROOT t = (f32[8], f32[32], f32[32]) fusion(x, y), kind=kOutput, calls=step"
    )
    parts = "step {" + PARTS.partition("step {")[2].partition("last {")[0]
    ((found, _),) = find(entry(body, before=parts))
    assert (found.start.name, found.done is found.start) == ("t", True)
    assert not found.is_split


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("all-reduce", "all-reduce"),
        ("ragged-all-to-all-start", "ragged-all-to-all"),
        ("all-reduce-done", ""),
        ("async-start", ""),
        ("reduce", ""),
    ],
)
def test_kinds(opcode: str, kind: str) -> None:
    assert collective_kind(opcode) == kind
