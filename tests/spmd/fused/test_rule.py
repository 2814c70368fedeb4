from spmd._fused.rule import (
    Experts,
    Fused,
    expert_modules,
    fused_modules,
    taken_apart,
)
from spmd._plans.rule import PlanPart, Rule

QKV = Fused("layers.*.qkv", (("q", 8), ("k", 4), ("v", 4)), dim=1)
SHAPES = {
    "layers.0.qkv.weight": (6, 16),
    "layers.0.qkv.bias": (16,),
    "layers.0.out.weight": (6, 8),
}
MODULES = ("", "layers", "layers.0", "layers.0.qkv", "layers.0.out")


def test_shapes_along_the_output_features():
    assert QKV.num_features == 16
    assert QKV.shapes("weight", (6, 16)) == {
        "q.weight": (6, 8),
        "k.weight": (6, 4),
        "v.weight": (6, 4),
    }
    assert QKV.shapes("bias", (16,))["v.bias"] == (4,)


def test_modules_that_a_plan_takes_apart():
    parts = [PlanPart("auto", (), (), (QKV,))]
    assert fused_modules(parts, SHAPES, MODULES) == {"layers.0.qkv": QKV}


def test_one_in_parts_already_is_passed_over():
    parts = [PlanPart("auto", (), (), (QKV,))]
    shapes, modules = taken_apart({"layers.0.qkv": QKV}, SHAPES, MODULES)
    assert fused_modules(parts, shapes, modules) == {}


def test_an_earlier_pattern_for_its_weight_keeps_it_whole():
    own = PlanPart("user", (Rule("**.qkv.weight", (None, "tensor")),))
    auto = PlanPart("auto", (), (), (QKV,))
    assert fused_modules([own, auto], SHAPES, MODULES) == {}
    assert fused_modules([auto, own], SHAPES, MODULES) == {"layers.0.qkv": QKV}


def test_an_earlier_pattern_for_its_output_does_not():
    own = PlanPart("user", (Rule("**.qkv", (None,), outputs_only=True),))
    auto = PlanPart("auto", (), (), (QKV,))
    assert fused_modules([own, auto], SHAPES, MODULES) == {"layers.0.qkv": QKV}


def test_names_after_taking_apart():
    shapes, modules = taken_apart({"layers.0.qkv": QKV}, SHAPES, MODULES)
    assert list(shapes) == [
        *(f"layers.0.qkv.{part}.weight" for part in "qkv"),
        *(f"layers.0.qkv.{part}.bias" for part in "qkv"),
        "layers.0.out.weight",
    ]
    assert modules[3:] == (
        *("layers.0.qkv", "layers.0.qkv.q", "layers.0.qkv.k", "layers.0.qkv.v"),
        "layers.0.out",
    )


def test_experts():
    experts = Experts("**.experts", (("gate_proj", (2, 4, 8)), ("up_proj", (2, 4, 8))))
    modules = ("", "mlp", "mlp.experts")
    found = expert_modules([PlanPart("auto", (), experts=(experts,))], modules)
    assert found == {"mlp.experts": experts}
    shapes, names = taken_apart({}, {"mlp.experts.gate_up": (2, 8, 8)}, modules, found)
    assert shapes == {
        "mlp.experts.gate_proj": (2, 4, 8),
        "mlp.experts.up_proj": (2, 4, 8),
    }
    assert names == modules
