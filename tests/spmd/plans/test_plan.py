from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spmd._meshes.mesh import Mesh
from spmd._plans.plan import Plan

MESH = Mesh({"replica": 2, "fsdp": 4, "tensor": 2})
PARAMETERS = {
    "embed.weight": (64, 16),
    **{f"layers.{i}.up.weight": (32, 16) for i in range(3)},
    **{f"layers.{i}.up.bias": (32,) for i in range(3)},
    "norm.weight": (16,),
}
MODULES = ["", "embed", "layers", *(f"layers.{i}" for i in range(3)), "norm"]


def test_first_pattern_wins() -> None:
    plan = Plan(
        {"layers.1.up.weight": (None, "fsdp"), "layers.*.up.weight": ("fsdp", None)}
    )
    rows = {r.name: r for r in plan.resolve(MESH, PARAMETERS).parameters}
    assert rows["layers.1.up.weight"].spec == (None, "fsdp")
    assert rows["layers.2.up.weight"].spec == ("fsdp", None)
    assert rows["layers.2.up.weight"].pattern == "layers.*.up.weight"
    assert rows["norm.weight"].pattern is None


def test_plans_join_in_order_and_rows_remember_theirs() -> None:
    user = Plan({"layers.0.up.weight": (None, "tensor")})
    model = Plan({"layers.*.up.weight": ("tensor", None)}, name="LlamaForCausalLM")
    default = Plan({"**.weight": ("fsdp", None)}, name="FSDPv2")
    joined = user | model | default
    assert joined.name == "user | LlamaForCausalLM | FSDPv2"
    shapes = {n: s for n, s in PARAMETERS.items() if len(s) == 2}
    rows = {r.name: r for r in joined.resolve(MESH, shapes).parameters}
    assert rows["layers.0.up.weight"].source == "user"
    assert rows["layers.1.up.weight"].source == "LlamaForCausalLM"
    assert rows["embed.weight"].source == "FSDPv2"
    assert (user | (model | default)) == joined


def test_joining_with_something_else() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        operator.or_(Plan({}), {"a": ("fsdp",)})


def test_repr_and_equality() -> None:
    plan = Plan({"a": ("fsdp",)}, outputs={"b": [["fsdp"], None]})
    assert repr(plan) == "Plan('user', 2 patterns)"
    assert plan == Plan({"a": ["fsdp"]}, outputs={"b": (("fsdp",), None)})
    assert hash(plan) == hash(Plan({"a": ["fsdp"]}, outputs={"b": (("fsdp",), None)}))
    assert plan != Plan({"a": ("fsdp",)}, name="other")
    assert [r.outputs_only for r in plan.rules] == [False, True]


def test_wrong_patterns_and_specs() -> None:
    with pytest.raises(
        TypeError, match=r"pattern 'a': a spec is a tuple .* got 'fsdp'"
    ):
        Plan({"a": "fsdp"})
    with pytest.raises(ValueError, match="empty component"):
        Plan({}, outputs={"a..b": ("fsdp",)})


def test_explain_prints_and_returns() -> None:
    console = Console(width=80, color_system=None)
    plan = Plan({"**.up.weight": ("fsdp", None)})
    with console.capture() as text:
        got = plan.explain(MESH, PARAMETERS, MODULES, console=console)
    assert len(got.parameters) == len(PARAMETERS)
    assert "layers.{0..2}.up.weight" in text.get()


def test_yaml_round_trip(tmp_path: Path) -> None:
    plan = Plan(
        {"layers.*.up.weight": (("replica", "fsdp"), None), "**.bias": ("on",)},
        outputs={"layers.*[0]": (0, None, "tensor")},
        name="mine",
    ) | Plan({}, name="empty")
    assert Plan.from_yaml(plan.to_yaml()) == plan
    path = tmp_path / "plan.yaml"
    path.write_text(plan.to_yaml(), "utf-8")
    assert Plan.from_yaml(path) == Plan.from_yaml(str(path)) == plan


def test_a_plan_is_named_after_its_file(tmp_path: Path) -> None:
    path = tmp_path / "llama-fsdp.yaml"
    path.write_text("norm.weight: [fsdp]\n", "utf-8")
    assert Plan.from_yaml(path).name == "llama-fsdp.yaml"
    assert Plan.from_yaml(path, name="llama").name == "llama"
    assert Plan.from_yaml("norm.weight: [fsdp]").name == "user"
    with pytest.raises(ValueError, match=r"^bad\.yaml, line 1: key 'a'"):
        (tmp_path / "bad.yaml").write_text("a: fsdp")
        Plan.from_yaml(tmp_path / "bad.yaml")


def test_a_missing_file() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml"):
        Plan.from_yaml("nowhere.yaml")


def test_torch_is_not_imported(run_script: Callable[..., Any]) -> None:
    done = run_script(
        """
        import sys
        from spmd._plans.plan import Plan
        from spmd._meshes.mesh import Mesh
        Plan.from_yaml("w: [fsdp]").explain(Mesh({"fsdp": 8}), {"w": (8,)})
        assert "torch" not in sys.modules and "jax" not in sys.modules
        """
    )
    assert done.rc == 0, done.stderr
