from __future__ import annotations

import pytest

from spmd._meshes.mesh import Mesh
from spmd._plans.plan import Plan
from spmd._plans.resolve import ResolvedPlan, Row

MESH = Mesh({"replica": 2, "fsdp": 4, "tensor": 2})
PARAMETERS = {
    "model.embed.weight": (64, 16),
    **{f"model.layers.{i}.up.weight": (30, 16) for i in range(80)},
    "model.norm.weight": (16,),
}
MODULES = ["", "model", *(f"model.layers.{i}" for i in range(80)), "lm_head"]


def resolve(plan: Plan, *, strict: bool = False) -> ResolvedPlan:
    return plan.resolve(MESH, PARAMETERS, MODULES, strict=strict)


def test_every_parameter_has_a_row() -> None:
    got = resolve(Plan({"model.layers.*.up.weight": ((1,), ())}))
    assert [r.name for r in got.parameters] == list(PARAMETERS)
    row = got.parameters[1]
    assert row == Row(
        "model.layers.0.up.weight",
        (30, 16),
        ("fsdp", None),
        (8, 16),
        "model.layers.*.up.weight",
        "user",
    )
    assert (row.num_elements, row.num_shard_elements) == (480, 128)
    assert got.uncovered == ("model.embed.weight", "model.norm.weight")
    assert got.parameters[0].spec == (None, None)
    assert got.parameters[0].shard_shape == (64, 16)
    assert repr(got) == (
        "ResolvedPlan(Mesh(replica=2, fsdp=4, tensor=2), 82 parameters, 2 uncovered, "
        "0 outputs)"
    )


def test_bytes_per_element() -> None:
    got = Plan({"w": ("fsdp",)}).resolve(
        MESH, {"w": (8,), "x": ()}, itemsize={"w": 2, "x": 4}
    )
    assert [r.itemsize for r in got.parameters] == [2, 4]
    assert got.parameters[1].spec == ()


def test_patterns_that_match_no_parameter_are_for_outputs() -> None:
    got = resolve(
        Plan(
            {
                "**.up.weight": ("fsdp", None),
                "model.layers.3": ("tensor", None),
                "model.layers.*": (("replica", "fsdp"), None, None),
            }
        )
    )
    assert len(got.outputs) == 80
    assert got.outputs[3].spec == ("tensor", None)
    assert got.outputs[3].pattern == "model.layers.3"
    assert got.outputs[4].spec == (("replica", "fsdp"), None, None)
    assert [r.name for r in got.outputs] == MODULES[2:-1]


def test_a_name_that_is_both_goes_to_the_parameter() -> None:
    shapes, modules = {"head": (8,)}, ["head"]
    got = Plan({"head": ("fsdp",)}, outputs={"head": ("tensor", None)}).resolve(
        MESH, shapes, modules
    )
    assert got.parameters[0].spec == ("fsdp",)
    assert [r.spec for r in got.outputs] == [("tensor", None)]


def test_one_output_of_several() -> None:
    got = resolve(
        Plan(
            {
                "model.layers.0[0]": ("fsdp", None),
                "model.layers.0[1]": ("tensor", None),
                "model.layers.*": ("replica", None),
                "[0]": ("fsdp",),
            }
        )
    )
    first = [(r.index, r.spec) for r in got.outputs if r.name == "model.layers.0"]
    assert first == [
        (0, ("fsdp", None)),
        (1, ("tensor", None)),
        (None, ("replica", None)),
    ]
    assert (got.outputs[0].name, got.outputs[0].index) == ("", 0)


def test_a_plan_of_higher_precedence_may_overrule_everything() -> None:
    user = Plan({"**.up.weight": (None, "tensor")})
    default = Plan({"model.layers.*.up.weight": ("fsdp", None)}, name="default")
    got = resolve(user | default)
    assert {r.source for r in got.parameters if r.pattern} == {"user"}


def test_a_pattern_that_matches_nothing() -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"plan 'user': pattern 'layers.\*.up.weight' matches no parameter or "
            r"module; nearest: 'model.layers.\*.up.weight'"
        ),
    ):
        resolve(Plan({"layers.*.up.weight": ("fsdp", None)}))
    with pytest.raises(
        ValueError, match=r"nothing is near. Names begin: model.embed.w"
    ):
        resolve(Plan({"zzzzzzz": ("fsdp",)}))
    with pytest.raises(ValueError, match="no names were given to match"):
        Plan({"w": ("fsdp",)}).resolve(MESH, {})


def test_an_output_pattern_matches_modules_only() -> None:
    with pytest.raises(
        ValueError, match=r"plan 'x'.* matches no module; nearest: 'lm_h"
    ):
        resolve(Plan({}, outputs={"lm_heed": ("fsdp", None)}, name="x"))
    with pytest.raises(
        ValueError, match=r"the parameter .*, but outputs= picks module"
    ):
        resolve(Plan({}, outputs={"model.norm.weight": ("fsdp",)}))
    with pytest.raises(
        ValueError, match=r"the parameter .*, but \[\.\.\.\] picks module"
    ):
        resolve(Plan({"model.norm.weight[0]": ("fsdp",)}))


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (
            Plan(
                {
                    "**.up.weight": ("fsdp", None),
                    "model.layers.3.up.weight": (None, None),
                }
            ),
            r"'model.layers.3.up.weight' decides nothing: '\*\*.up.weight', which "
            r"comes earlier, already matches 'model.layers.3.up.weight'. Put the",
        ),
        (
            Plan({"**.up.*": ("fsdp", None), "**.up.weight": ("fsdp", None)}),
            r"already matches 'model.layers.0.up.weight' \(and earlier patterns its "
            r"other 79 matches",
        ),
        (
            Plan(
                {"model.layers.*": ("fsdp", None), "model.layers.*[0]": ("fsdp", None)}
            ),
            r"'model.layers.\*\[0\]' decides nothing: 'model.layers.\*', which",
        ),
    ],
)
def test_a_pattern_in_the_shadow_of_another(plan: Plan, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        resolve(plan)


def test_a_spec_that_does_not_fit() -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"plan 'mine', pattern '\*\*.weight': parameter 'model.norm.weight' "
            r"\[16\]: spec .* has 2 entries for 1 dims"
        ),
    ):
        resolve(Plan({"**.weight": ("fsdp", None)}, name="mine"))
    with pytest.raises(
        ValueError, match=r"'model.embed.weight'.* axis 'fdsp'.*did you me"
    ):
        resolve(Plan({"model.embed.weight": ("fdsp", None)}))
    with pytest.raises(
        ValueError, match=r"output of module 'lm_head': spec .* axis 'data'"
    ):
        resolve(Plan({"lm_head": ("data", None)}))


def test_strict_refuses_padding() -> None:
    plan = Plan({"**.up.weight": ("fsdp", None)})
    assert resolve(plan).parameters[1].shard_shape == (8, 16)
    with pytest.raises(
        ValueError,
        match=r"layers.0.up.weight' \[30, 16\]: dim 0 of size 30 does not divide",
    ):
        resolve(plan, strict=True)
    resolve(Plan({"model.embed.weight": ("fsdp", None)}), strict=True)
