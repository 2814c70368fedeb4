import pytest

from profiling._collectives.ops import collective_ops
from profiling._collectives.told import Told, line_of
from profiling._hlo.module import Metadata
from profiling._hlo.op_name import Scope
from tests.profiling.hlo_files import SUM, entry

ON = "channel_id=1, use_global_device_ids=true, replica_groups=[2,4]<=[8]"
NAMES = (
    "layers.0.norm.weight",
    "layers.0.gate.weight",
    "layers.0.up.weight",
    "wte.w",
    "param.3",
)


def at(scope: str, line: int) -> str:
    return f', metadata={{op_name="{scope}" source_file="m.py" source_line={line}}}'


ALONE = f"""
x = f32[8] parameter(0)
g = f32[8] all-reduce(x), to_apply=sum, {ON}%s
b = f32[8] bitcast(g)
ROOT r = f32[8] sort(b){at("forward/layers.0.up/mm", 5)}
"""


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        (
            at("backward/layers.0.up/mm", 3),
            (Scope("backward", "layers.0.up", "mm"), "m.py:3"),
        ),
        # no phase: the reader's is better
        (at("aten__mm", 3), (Scope("forward", "layers.0.up", "mm"), "m.py:5")),
        ("", (Scope("forward", "layers.0.up", "mm"), "m.py:5")),
    ],
)
def test_one_alone(metadata: str, wanted: tuple[Scope, str]) -> None:
    module = entry(ALONE % metadata, before=SUM)
    (op,) = collective_ops(module)
    x = op.instruction.operands[0]
    assert Told(module, NAMES).scope(op, 0, x, None) == wanted


def test_nothing_tells() -> None:
    body = f"x = f32[8] parameter(0)\nROOT g = f32[8] all-reduce(x), to_apply=sum, {ON}"
    module = entry(body, before=SUM)
    (op,) = collective_ops(module)
    told = Told(module, ()).scope(op, 0, op.instruction.operands[0], None)
    assert told == (Scope(), "")


def test_what_the_producer_is_made_of_tells() -> None:
    """The compiler has been seen to remake a sum and leave its metadata out."""
    body = f"""
    x = f32[4,8] parameter(0)
    z = f32[] constant(0)
    y = f32[4,8] sort(x), dimensions={{0}}{at("backward/drop/mul", 3)}
    r = f32[8] reduce(y, z), dimensions={{0}}, to_apply=sum
    ROOT g = f32[8] all-reduce(r), to_apply=sum, {ON}
    """
    module = entry(body, before=SUM)
    (op,) = collective_ops(module)
    (r,) = op.instruction.operands
    told = Told(module, ()).scope(op, 0, r, r)
    assert told == (Scope("backward", "drop", "mul"), "m.py:3")


JOINED = f"""
x = f32[8] parameter(0)
y = f32[8] sort(x){at("backward/layers.0.norm/sum", 7)}
g = (f32[8], f32[8]) all-reduce(x, y), to_apply=sum, {ON}{at("update/add", 1)}
a = f32[8] get-tuple-element(g), index=0
b = f32[8] get-tuple-element(g), index=1
s = f32[8] sort(a){at("forward/layers.0.gate/mm", 5)}
ROOT r = (f32[8], f32[8]) tuple(s, b)
"""


def test_joined_ones() -> None:
    module = entry(JOINED, before=SUM)
    (op,) = collective_ops(module)
    x, y = op.instruction.operands
    told = Told(module, NAMES)
    assert told.scope(op, 0, x, None) == (
        Scope("forward", "layers.0.gate", "mm"),
        "m.py:5",
    )
    assert told.scope(op, 1, y, y) == (
        Scope("backward", "layers.0.norm", "sum"),
        "m.py:7",
    )


def test_a_done_elsewhere_has_no_readers() -> None:
    body = f"""
    x = f32[8] parameter(0)
    ROOT s = f32[8] all-reduce-start(x), to_apply=sum, {ON}
    """
    module = entry(body, before=SUM)
    (op,) = collective_ops(module)
    assert op.done is None
    told = Told(module, ()).scope(op, 0, op.instruction.operands[0], None)
    assert told == (Scope(), "")


LINES = "x = f32[8] parameter(0)\n" + "".join(
    f"a{i} = f32[8] sort(x){at(scope, i)}\n"
    for i, scope in enumerate(["forward/layers.0.up/mm", "backward/layers.0.up/mm"], 1)
)


@pytest.mark.parametrize(
    ("told", "tensor", "module", "line"),
    [
        # the gate's matmul, with which that of up was joined
        ("layers.0.gate", "layers.0.up.weight", "layers.0.up", "m.py:2"),
        ("layers.0", "layers.0.up.weight", "layers.0.up", "m.py:2"),
        ("", "layers.0.up.weight", "layers.0.up", "m.py:2"),
        ("layers.0.up", "layers.0.up.weight", "layers.0.up", "n.py:9"),
        ("layers.0.gate", "layers.0.norm.weight", "layers.0.norm", "n.py:9"),
        ("lm_head", "wte.w", "lm_head", "n.py:9"),  # tied: no parameter of its own
        ("layers.0.gate", "p[0][1]", "layers.0.gate", "n.py:9"),
        ("layers.0.gate", "param.3", "layers.0.gate", "n.py:9"),
        ("layers.0.gate", "", "layers.0.gate", "n.py:9"),
    ],
)
def test_of_a_tensor(told: str, tensor: str, module: str, line: str) -> None:
    teller = Told(entry(f"{LINES}ROOT r = f32[8] sort(x)"), NAMES)
    found = teller.of_tensor(Scope("backward", told, "mm"), "n.py:9", tensor)
    assert found == (Scope("backward", module, "mm"), line)


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        (Metadata("a", "m.py", 3), "m.py:3"),
        (Metadata("a", "m.py"), "m.py"),
        (Metadata(), ""),
    ],
)
def test_line(metadata: Metadata, wanted: str) -> None:
    assert line_of(metadata) == wanted
