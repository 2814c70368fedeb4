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


SPARSE = f"""
called {{
  p = f32[8] parameter(0)
  ROOT g = {GATHER}
}}, execution_thread="sparsecore"
wrapped {{
  q = f32[8] parameter(0)
  ROOT c = f32[32] call(q), to_apply=called
}}, execution_thread="sparsecore"
"""


@pytest.mark.parametrize(
    ("opcode", "called"),
    [("async", "calls=wrapped"), ("call", "to_apply=called")],
    ids=["as bytes", "as text"],
)
def test_a_collective_on_sparse_cores(opcode: str, called: str) -> None:
    """As libtpu compiles it for a v6e that offloads collectives."""
    body = f"""
x = f32[8] parameter(0)
s = ((f32[8]), f32[32], u32[]) {opcode}-start(x), {called}
ROOT d = f32[32] {opcode}-done(s)
"""
    before = SPARSE
    if opcode == "call":  # text leaves the wrapper out
        before = SPARSE.partition("wrapped {")[0]
    ((found, _),) = find(entry(body, before=before))
    assert (found.kind, found.instruction.name) == ("all-gather", "g")
    assert (found.start.name, found.done and found.done.name) == ("s", "d")
    assert found.is_split


def test_a_call_that_is_not_wrapped_runs_what_it_holds() -> None:
    body = "x = f32[8] parameter(0)\nROOT c = f32[32] call(x), to_apply=called"
    ((found, _),) = find(entry(body, before=SPARSE.partition("wrapped {")[0]))
    assert (found.start.name, found.done, found.is_split) == ("g", found.start, False)


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
