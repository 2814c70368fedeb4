import pytest

from profiling._hlo.small_numbers import Budget, Unknown, evaluate
from tests.profiling.hlo_files import entry

HEAD = "a = s32[] constant(12)\nb = s32[] constant(5)\nt = pred[] constant(true)\n"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("s32[] add(a, b)", 17),
        ("s32[] subtract(a, b)", 7),
        ("s32[] multiply(a, b)", 60),
        ("s32[] maximum(a, b)", 12),
        ("s32[] minimum(a, b)", 5),
        ("s32[] and(a, b)", 4),
        ("s32[] or(a, b)", 13),
        ("s32[] xor(a, b)", 9),
        ("s32[] negate(a)", -12),
        ("pred[] not(t)", 0),
        ("pred[] compare(a, b), direction=GE", 1),
        ("pred[] compare(a, b), direction=EQ", 0),
        ("s32[] select(t, a, b)", 12),
        ("s64[] convert(a)", 12),
        ("s32[1] reshape(a)", 12),
    ],
)
def test_operations(expression: str, value: int) -> None:
    module = entry(f"{HEAD}ROOT r = {expression}")
    assert evaluate(Budget(module), module.entry.root, ()) == value


def test_elements_of_tuples() -> None:
    module = entry(
        f"{HEAD}p = f32[4] parameter(0)\n"
        "u = (s32[], f32[4]) tuple(b, p)\nROOT r = s32[] get-tuple-element(u), index=0"
    )
    assert evaluate(Budget(module), module.entry.root, ()) == 5


def test_a_fusion_of_several_results() -> None:
    before = (
        "f {\n  x = s32[] parameter(0)\n  y = f32[4] parameter(1)\n"
        "  s = s32[] add(x, x)\n  ROOT r = (f32[4], s32[]) tuple(y, s)\n}\n"
    )
    module = entry(
        f"{HEAD}p = f32[4] parameter(0)\n"
        "u = (f32[4], s32[]) fusion(a, p), kind=kLoop, calls=f\n"
        "ROOT r = s32[] get-tuple-element(u), index=1",
        before=before,
    )
    assert evaluate(Budget(module), module.entry.root, ()) == 24


@pytest.mark.parametrize(
    "body",
    [
        "ROOT r = s32[] parameter(0)",
        "p = s32[] parameter(0)\nROOT r = s32[] add(p, p)",
        "p = f32[] constant(1.5)\nROOT r = f32[] negate(p)",
        "p = s32[] constant(4)\nROOT r = s32[8] broadcast(p), dimensions={}",
        "p = s32[] constant(4)\nq = s32[] constant(0)\nROOT r = s32[] divide(p, q)",
        "ROOT r = u32[] partition-id()",
    ],
)
def test_what_depends_on_data(body: str) -> None:
    module = entry(body)
    with pytest.raises(Unknown):
        evaluate(Budget(module), module.entry.root, ())


def test_long_expressions_are_given_up() -> None:
    adds = "\n".join(f"x{i + 1} = s32[] negate(x{i})" for i in range(200))
    module = entry(f"x0 = s32[] constant(1)\n{adds}")
    with pytest.raises(Unknown):
        evaluate(Budget(module), module.entry.root, ())


def test_shared_expressions_have_a_budget() -> None:
    adds = "\n".join(f"x{i + 1} = s32[] add(x{i}, x{i})" for i in range(90))
    module = entry(f"x0 = s32[] constant(1)\n{adds}")
    with pytest.raises(Unknown):
        evaluate(Budget(module, left=1000), module.entry.root, ())
