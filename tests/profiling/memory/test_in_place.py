import pytest

from profiling._hlo.module import Instruction, Module
from profiling._memory.in_place import InPlace
from tests.profiling.hlo_files import SUM, entry

FUSED = """
add1 {
  p = f32[8]{0} parameter(0)
  q = f32[8]{0} parameter(1)
  r = f32[8]{0} reverse(q), dimensions={0}
  ROOT s = f32[8]{0} add(p, r)
}
update {
  p = f32[4,8]{1,0} parameter(0)
  q = f32[32]{0} parameter(1)
  i = s32[] parameter(2)
  b = f32[4,8]{1,0} bitcast(q)
  z = s32[] constant(0)
  u = f32[1,8]{1,0} slice(p), slice={[0:1], [0:8]}
  d = f32[4,8]{1,0} dynamic-update-slice(b, u, i, z)
  e = f32[32]{0} bitcast(d)
  n = f32[4,8]{1,0} negate(p)
  ROOT t = (f32[4,8]{1,0}, f32[32]{0}) tuple(n, e)
}
"""


def last(body: str, before: str = "") -> tuple[Module, Instruction]:
    module = entry(body, before=before)
    return module, module.entry.root


def rules(module: Module, *, reduces: bool = False) -> InPlace:
    return InPlace(module, reduces_in_place=reduces)


def test_an_update_lies_where_its_operand_does():
    module, root = last(
        "a = f32[8]{0} parameter(0)\nu = f32[2]{0} parameter(1)\n"
        "i = s32[] parameter(2)\nROOT r = f32[8]{0} dynamic-update-slice(a, u, i)"
    )
    assert rules(module).must(root) == {0: 0}


def test_a_fusion_that_updates():
    # Element 1 of the root is, through bitcasts, an update of parameter 1.
    module, root = last(
        "a = f32[4,8]{1,0} parameter(0)\nb = f32[32]{0} parameter(1)\n"
        "i = s32[] parameter(2)\nROOT f = (f32[4,8]{1,0}, f32[32]{0}) "
        "fusion(a, b, i), kind=kLoop, calls=update",
        FUSED,
    )
    found = rules(module)
    assert found.must(root) == {1: 1}
    assert not found.may(root, 0, 0)  # a is also sliced


def test_a_fusion_that_reads_element_by_element():
    module, root = last(
        "a = f32[8]{0} parameter(0)\nb = f32[8]{0} parameter(1)\n"
        "ROOT f = f32[8]{0} fusion(a, b), kind=kLoop, calls=add1",
        FUSED,
    )
    found = rules(module)
    assert found.must(root) == {}
    assert found.may(root, 0, 0)
    assert not found.may(root, 1, 0)  # read in reverse


@pytest.mark.parametrize(
    ("operand", "result", "expected"),
    [
        ("f32[8]{0}", "s32[8]{0} bitcast-convert(a)", True),
        ("f32[8]{0}", "f32[8]{0} negate(a)", True),
        ("f32[8]{0}", "bf16[8]{0} convert(a)", False),
        ("f32[8]{0}", "f32[8]{0} reverse(a), dimensions={0}", False),
        ("f32[8]{0}", "f32[8]{0} copy(a)", False),
        ("f32[8,4]{1,0}", "f32[8,4]{0,1} negate(a)", False),
        ("f32[8]{0}", "f32[8]{0} sort(a), dimensions={0}, to_apply=sum", True),
    ],
)
def test_what_may_be_written_over_its_operand(operand, result, expected):
    module, root = last(f"a = {operand} parameter(0)\nROOT r = {result}", SUM)
    assert rules(module).may(root, 0, 0) is expected


def test_reductions():
    module, root = last(
        "a = f32[8]{0} parameter(0)\nb = f32[8]{0} parameter(1)\n"
        "ROOT r = (f32[8]{0}, f32[8]{0}) all-reduce(a, b), to_apply=sum",
        SUM,
    )
    assert rules(module, reduces=True).may(root, 1, 1)
    assert not rules(module, reduces=True).may(root, 0, 1)
    assert not rules(module).may(root, 1, 1)
