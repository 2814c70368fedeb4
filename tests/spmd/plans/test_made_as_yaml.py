import pytest

from spmd._fused.rule import Experts, Fused
from spmd._plans.as_yaml import write
from spmd._plans.plan import Plan
from spmd._plans.rule import PlanPart, Rule

PART = PlanPart(
    "auto",
    (
        Rule("**.q.weight", ("tensor", "fsdp")),
        Rule("**.q", ("fsdp", None, "tensor"), outputs_only=True),
        Rule("**.out", ("fsdp", None, "tensor"), inputs_only=True),
    ),
    ("kept whole: it is small",),
    (Fused("h.*.c_attn", (("q", 8), ("k", 4)), dim=1),),
    (Experts("**.experts", (("gate_proj", (4, 8, 2)),)),),
)


def test_what_was_written_is_read_again():
    text = write([PART, PlanPart("rest", (Rule("w", (None,)),))])
    assert Plan.from_yaml(text).parts == (
        PART,
        PlanPart("rest", (Rule("w", (None,)),)),
    )


def test_a_flat_plan_has_patterns_of_any_name():
    (part,) = Plan.from_yaml("notes: [fsdp]\nfused: [null]\n").parts
    assert [rule.pattern for rule in part.rules] == ["notes", "fused"]


@pytest.mark.parametrize(
    "section",
    ["fused: {a: 3}", "fused: {a: {dim: 0}}", "experts: {a: {x: 3}}", "notes: 3"],
)
def test_sections_of_another_form(section):
    with pytest.raises(ValueError, match="plan: section 'fused' is a mapping of"):
        Plan.from_yaml(f"parameters: {{w: [fsdp]}}\n{section}\n")
