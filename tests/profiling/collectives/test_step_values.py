import pytest

from profiling._collectives.origins import Origins
from profiling._collectives.step_values import Given, StepValues, owner
from profiling._hlo.module import Module
from spmd import Mesh, Program
from spmd._program.program import MLIR_MAGIC
from spmd._program.value import Value
from tests.profiling.hlo_files import DATA, content, entry, parse


def program(inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> Program:
    return Program(MLIR_MAGIC, Mesh({"fsdp": 8}), inputs, outputs)


def values(module: Module, given: Program | None = None) -> StepValues:
    return StepValues.of(module, given, Origins(module))


STEP = """
p = f32[8] parameter(0), metadata={op_name="params['w']"}
m = f32[8] parameter(1)
v = f32[8] parameter(2)
x = f32[8] parameter(3)
i = s32[8] parameter(4)
f = f32[8] parameter(5), metadata={op_name="frozen.weight"}
g = f32[8] sort(x)
m2 = f32[8] add(m, g)
v2 = f32[8] multiply(v, g)
u = f32[8] divide(m2, v2)
p2 = f32[8] subtract(p, u)
l = f32[] constant(1)
ROOT t = (f32[], f32[8], f32[8], f32[8]) tuple(l, p2, m2, v2)
"""


def test_a_step_without_a_program() -> None:
    found = values(entry(STEP))
    assert found.inputs == (
        Given("params['w']", "parameter"),
        Given("m", "optimizer"),
        Given("v", "optimizer"),
        Given("x", "input"),
        Given("i", "input"),
        Given("frozen.weight", "parameter"),
    )
    assert [(n, index) for n, (_, index) in found.results] == [
        ("params['w']", (2,)),
        ("params['w']", (3,)),
        ("params['w']", (1,)),
    ]
    assert [index for _, index in found.outputs] == [(0,)]


def test_aliases_tell_equal_states_apart() -> None:
    body = "a = f32[8] parameter(0)\nb = f32[8] parameter(1)\n"
    body += "c = f32[8] add(a, b)\nROOT t = (f32[8], f32[8]) tuple(c, b)"
    alias = ", input_output_alias={ {0}: (0, {}), {1}: (1, {}) }"
    found = values(entry(body, header=alias))
    assert [g.kind for g in found.inputs] == ["parameter", "optimizer"]
    assert found.results == (
        ("a", (found.results[0][1][0], (1,))),
        ("a", (found.results[0][1][0], (0,))),
    )


def test_a_dump_of_jax_has_its_names() -> None:
    found = values(parse(content(DATA / "gpu_h100.txt.gz")))
    assert found.inputs == (
        *(Given(f"p[{i}][{j}]", "parameter") for i in (0, 1) for j in (0, 1)),
        Given("x", "input"),
    )
    assert sorted(name for name, _ in found.results) == [
        f"p[{i}][{j}]" for i in (0, 1) for j in (0, 1)
    ]


BODY = "w = f32[8] parameter(0)\nm = f32[8] parameter(1)\nb = f32[8] parameter(2)\n"
BODY += "g = f32[8] parameter(3)\nx = f32[8] parameter(4)\n"
BODY += "ROOT t = (f32[8], f32[8], f32[8], f32[8], f32[8]) tuple(x, x, x, x, x)"
INPUTS = (
    Value("w", "parameter", (8,), "float32"),
    Value("optimizer.exp_avg[w]", "optimizer", (8,), "float32"),
    Value("running", "buffer", (8,), "float32"),
    Value("grad[w]", "gradient", (8,), "float32"),
    Value("batch.x", "input", (8,), "float32"),
)
OUTPUTS = (
    *(
        Value(v.name, v.role, (8,), "float32", updates=i)
        for i, v in enumerate(INPUTS[:4])
    ),
    Value("loss", "output", (8,), "float32"),
)


def test_what_a_program_says() -> None:
    found = values(entry(BODY), program(INPUTS, OUTPUTS))
    assert [g.kind for g in found.inputs] == [
        "parameter",
        "optimizer",
        "parameter",
        "gradient",
        "input",
    ]
    assert [(name, index[0]) for name, (_, index) in found.results] == [
        ("w", 0),
        ("w", 1),
        ("w", 3),
    ]
    assert [index[0] for _, index in found.outputs] == [2, 4]


def test_another_program() -> None:
    with pytest.raises(
        ValueError,
        match=r"'m' takes 5 arrays and gives 5, program 'step' takes 4 and gives 5",
    ):
        values(entry(BODY), program(INPUTS[:4], OUTPUTS))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("optimizer.exp_avg[layers.0.w]", "layers.0.w"),
        ("optimizer.0.step[w]", "w"),
        ("grad[w]", "w"),
        ("w", "w"),
        ("gradient[w]", "gradient[w]"),
    ],
)
def test_owner(name: str, wanted: str) -> None:
    assert owner(name) == wanted
