"""As few patterns as say what was decided name by name."""

from __future__ import annotations

import pytest

from spmd._adapt.rule import Adapted
from spmd._auto.rows import Rows, Said, plan_parts
from spmd._fused.rule import Experts, Fused
from spmd._plans.rule import PlanPart, Rule

LAYERS = tuple(f"layers.{i}.up" for i in range(3))
UP, DOWN = ("tensor", "fsdp"), ("fsdp", "tensor")


def parts(names=LAYERS, modules=(), **decided) -> tuple[PlanPart, ...]:
    return plan_parts(Rows(**decided), names, modules)


def test_equal_layers_are_one_pattern():
    (part,) = parts(parameters=dict.fromkeys(LAYERS, Said(UP, "own")))
    assert part == PlanPart("own", (Rule("layers.*.up", UP),))


@pytest.mark.parametrize(
    "changed", [Said(DOWN, "own"), Said(UP, "other")], ids=["spec", "source"]
)
def test_layers_that_differ_are_named(changed):
    said = dict.fromkeys(LAYERS, Said(UP, "own")) | {LAYERS[1]: changed}
    found = {p.name: p.rules for p in parts(parameters=said)}
    own = (Rule(LAYERS[0], UP), Rule(LAYERS[2], UP))
    if changed.source == "own":
        assert found == {"own": (own[0], Rule(LAYERS[1], DOWN), own[1])}
    else:
        assert found == {"own": own, "other": (Rule(LAYERS[1], UP),)}


def test_a_pattern_does_not_reach_what_nobody_spoke_of():
    said = dict.fromkeys(LAYERS[:2], Said(UP, "own"))
    (part,) = parts(parameters=said)
    assert [rule.pattern for rule in part.rules] == list(LAYERS[:2])


def test_inputs_and_outputs_are_of_modules():
    spec = ("fsdp", None, "tensor")
    said = dict.fromkeys(LAYERS, Said(spec, "own"))
    (part,) = parts((), LAYERS, outputs=said, inputs=said)
    assert part.rules == (
        Rule("layers.*.up", spec, outputs_only=True),
        Rule("layers.*.up", spec, inputs_only=True),
    )


def test_modules_to_change_have_patterns_too():
    fused = Fused("", (("q", 8), ("k", 4)), 1)
    experts = Experts("", (("up_proj", (4, 8, 8)),))
    adapted = Adapted("", "repeat_heads", 4)
    (part,) = parts(
        (),
        LAYERS,
        fused=dict.fromkeys(LAYERS, Said(fused, "own")),
        experts={LAYERS[0]: Said(experts, "own")},
        adapted=dict.fromkeys(LAYERS, Said(adapted, "own")),
    )
    assert part.fused == (Fused("layers.*.up", fused.parts, 1),)
    assert part.experts == (Experts(LAYERS[0], experts.held),)
    assert part.adapted == (Adapted("layers.*.up", "repeat_heads", 4),)


def test_what_is_said_of_each_layer_is_said_once():
    notes = [Said("same", "b"), Said("other", "a"), Said("same", "b")]
    found = parts(parameters={LAYERS[0]: Said(UP, "a")}, notes=notes)
    assert [(p.name, p.notes) for p in found] == [("a", ("other",)), ("b", ("same",))]
