import pytest

from profiling._collectives.origins import (
    Origin,
    Origins,
    indices,
    input_leaves,
    inputs_of,
    leaf_shape,
    output_leaves,
)
from profiling._hlo.module import Module
from profiling._hlo.shape import Shape
from tests.profiling.collectives.test_flow import CALLED, CALLS
from tests.profiling.hlo_files import entry

BODY = """
x = f32[8,8] parameter(0)
w = bf16[8,8] parameter(1)
n = f32[8] parameter(2)
c = f32[8,8] convert(w)
two = f32[] constant(2)
b = f32[8,8] broadcast(two), dimensions={}
m = f32[8,8] multiply(c, b)
k = f32[8,8] broadcast(b), dimensions={0,1}
v = f32[8,8] broadcast(n), dimensions={0}
z = f32[8,8] multiply(x, v)
d = f32[8,8] dot(x, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
r = f32[8,8] add(d, x)
e = f32[8,8] add(r, x)
ROOT t = (f32[8,8], f32[8,8]) tuple(e, m)
"""


def of(module: Module, name: str, index: tuple[int, ...] = ()) -> Origin:
    return Origins(module).of((module.instruction(name), index))


@pytest.mark.parametrize(
    ("name", "index", "inputs", "producer"),
    [
        ("x", (), (0,), None),
        ("m", (), (1,), None),  # cast and scaled
        ("z", (), (0,), None),  # what is spread over rows does not count
        ("v", (), (2,), None),  # unless it is all there is
        ("k", (), (), None),
        ("d", (), (), "d"),
        ("e", (), (), "d"),
        ("t", (0,), (), "d"),
        ("t", (1,), (1,), None),
    ],
)
def test_origins(name, index, inputs, producer) -> None:
    found = of(entry(BODY), name, index)
    assert found.inputs == inputs
    assert (found.producer and found.producer.name) == producer


def test_what_is_known_is_not_looked_at_again() -> None:
    module = entry(BODY)
    origins = Origins(module)
    first = origins.of((module.instruction("r"), ()))
    seen = []
    step = origins.flow.before
    origins.flow.before = lambda value: seen.append(value[0].name) or step(value)
    assert origins.of((module.instruction("e"), ())) == first
    assert seen == ["e", "r"]


@pytest.mark.parametrize(
    ("name", "index", "inputs"),
    [
        ("f", (0,), (1,)),
        ("f", (1,), (0,)),
        ("h", (0,), (0,)),  # round and round
        ("e", (), (0,)),
        ("g", (), (0, 1)),
        ("ad", (), (0,)),
    ],
)
def test_through_computations(name, index, inputs) -> None:
    assert of(entry(CALLS, before=CALLED), name, index) == Origin(inputs)


def test_a_loop_whose_state_is_computed() -> None:
    body = CALLED.replace("n = f32[8] negate(e)", "n = f32[8] sort(e)")
    module = entry(CALLS, before=body)
    assert of(module, "e").producer is module.instruction("n")


PACKED = """
p = (f32[8], (s32[2], s32[3])) parameter(0)
q = f32[4] parameter(1)
a = (s32[2], s32[3]) get-tuple-element(p), index=1
b = s32[3] get-tuple-element(a), index=1
ROOT t = (s32[3], (f32[4])) tuple(b, q)
"""


def test_packed_inputs_and_outputs() -> None:
    module = entry(PACKED)
    assert [leaf for leaf, _ in input_leaves(module)] == [
        (0, (0,)),
        (0, (1, 0)),
        (0, (1, 1)),
        (1, ()),
    ]
    assert of(module, "b").inputs == (2,)
    assert [index for _, index in output_leaves(module)] == [(0,), (1, 0)]
    whole = Origins(module)
    assert whole.number((module.instruction("p"), ())) is None
    assert whole.number((module.instruction("p"), (1, 1))) == 2


def test_one_output_that_is_no_tuple() -> None:
    module = entry("ROOT x = f32[8] parameter(0)")
    assert output_leaves(module) == [(module.entry.root, ())]


def test_inputs_of_a_result() -> None:
    module = entry(BODY)
    origins = Origins(module)
    assert inputs_of(origins, (module.entry.root, (0,))) == {0}
    assert inputs_of(origins, (module.entry.root, (1,))) == {1}


NUMBERS = """
x = f32[8] parameter(0)
a = f32[] sort(x)
b = f32[1] reshape(a)
c = f32[2] concatenate(b, b), dimensions={0}
d = f32[3] concatenate(c, b), dimensions={0}
e = f32[3] negate(d)
ROOT f = f32[9] concatenate(x, b), dimensions={0}
"""


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("a", True), ("b", True), ("d", True), ("e", False), ("x", False), ("f", False)],
)
def test_numbers(name: str, wanted: bool) -> None:
    module = entry(NUMBERS)
    assert Origins(module).is_numbers((module.instruction(name), ())) is wanted


def test_shapes() -> None:
    shape = Shape.parse("(f32[], (s32[2], s32[3]))")
    assert [str(leaf_shape(shape, i)) for i in indices(shape)] == [
        "f32[]",
        "s32[2]",
        "s32[3]",
    ]
