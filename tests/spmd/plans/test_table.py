from __future__ import annotations

import pytest
from rich.console import Console

from spmd._meshes.mesh import Mesh
from spmd._plans.plan import Plan
from spmd._plans.resolve import ResolvedPlan
from spmd._plans.table import spec_text

MESH = Mesh({"replica": 2, "fsdp": 16, "tensor": 4})
PARAMETERS = {
    "model.embed_tokens.weight": (128256, 4096),
    **{f"model.layers.{i}.self_attn.q_proj.weight": (4096, 4096) for i in range(32)},
    **{f"model.layers.{i}.self_attn.k_proj.weight": (1024, 4096) for i in range(32)},
    **{f"model.layers.{i}.odd": (101, 3) for i in range(2)},
    "model.norm.weight": (4096,),
}


def shown(resolved: ResolvedPlan, *, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as text:
        resolved.explain(console)
    return text.get()


def example() -> ResolvedPlan:
    plan = Plan(
        {
            "model.layers.*.self_attn.*_proj.weight": (("tensor", "fsdp"), None),
            "model.layers.*.odd": ("fsdp", None),
            "model.layers.*[0]": (("replica", "fsdp"), None, None),
        },
        outputs={"model": ("fsdp", None, None)},
    ) | Plan({"model.embed_tokens.*": ("fsdp", None)}, name="FSDPv2 default")
    modules = ["model", *(f"model.layers.{i}" for i in range(32))]
    return plan.resolve(MESH, PARAMETERS, modules)


def test_spec_text() -> None:
    assert spec_text(()) == "()"
    assert spec_text(("fsdp",)) == "(fsdp,)"
    assert spec_text((("replica", "fsdp"), None)) == "((replica, fsdp), None)"


EXPECTED = """\
68 parameters on Mesh(replica=2, fsdp=16, tensor=4)
  parameter                                     shape           per device
FSDPv2 default: model.embed_tokens.* -> (fsdp, None)
  model.embed_tokens.weight                     [128256, 4096]  [8016, 4096]
user: model.layers.*.self_attn.*_proj.weight -> ((tensor, fsdp), None)
  model.layers.{0..31}.self_attn.q_proj.weight  [4096, 4096]    [64, 4096]
  model.layers.{0..31}.self_attn.k_proj.weight  [1024, 4096]    [16, 4096]
user: model.layers.*.odd -> (fsdp, None)
  model.layers.{0,1}.odd                        [101, 3]        [7, 3] padded
no pattern (1 of 68) -> replicated
  model.norm.weight                             [4096]          [4096]
"""


@pytest.mark.parametrize("width", [80, 120])
def test_one_line_for_all_layers(width: int) -> None:
    lines = shown(example(), width=width).splitlines()
    assert [line.rstrip() for line in lines[:11]] == EXPECTED.splitlines()
    assert max(map(len, lines)) <= width


def test_outputs() -> None:
    lines = [line.rstrip() for line in shown(example()).splitlines()]
    assert lines[-5:] == [
        "33 module outputs",
        "user -> (fsdp, None, None)",
        "  model",
        "user -> ((replica, fsdp), None, None)",
        "  model.layers.{0..31}[0]",
    ]


def test_a_pattern_is_shown_where_the_name_does_not_tell() -> None:
    plan = Plan({}, outputs={"*_head": ("fsdp", None), "": ("fsdp",)}, name="mine")
    text = shown(plan.resolve(MESH, {"w": (4,)}, ["", "lm_head"]))
    assert "mine: *_head -> (fsdp, None)" in text
    assert "(root)" in text


def test_patterns_that_are_names_share_a_heading() -> None:
    spec = ("fsdp", None)
    plan = Plan({"layers.*.a": spec, "layers.*.b": spec, "c": (None, "fsdp")})
    shapes = {f"layers.{i}.{n}": (16, 16) for i in range(2) for n in "ab"}
    lines = shown(plan.resolve(MESH, {**shapes, "c": (16, 16)})).splitlines()
    assert [line.split("  ")[0] or line.split()[0] for line in lines[2:-1]] == [
        "user -> (fsdp, None)",
        "layers.{0,1}.a",
        "layers.{0,1}.b",
        "user: c -> (None, fsdp)",
        "c",
    ]


def test_a_narrow_terminal_folds_names() -> None:
    text = shown(example(), width=50)
    assert max(map(len, text.splitlines())) <= 50
    assert "[128256, 4096]" in text


def test_sizes() -> None:
    plan = Plan({"w": ("fsdp",)})
    text = shown(plan.resolve(MESH, {"w": (32,)}))
    assert "Each device holds 2 of 32 elements (6.2%)" in text
    text = shown(plan.resolve(MESH, {"w": (32,)}, itemsize={"w": 4}))
    assert "Each device holds 8 of 128 bytes (6.2%)" in text
    assert "Each device holds 0 of 0 elements" in shown(Plan({}).resolve(MESH, {}))
