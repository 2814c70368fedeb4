import dataclasses

import pytest

from profiling._collectives.origins import Origin
from profiling._collectives.roles import Facts, Part, part
from profiling._collectives.step_values import Given
from profiling._hlo.module import Attributes, Instruction, Metadata
from profiling._hlo.op_name import Scope
from profiling._hlo.shape import Shape

INPUTS = (
    Given("w", "parameter"),
    Given("optimizer.exp_avg[w]", "optimizer"),
    Given("grad[w]", "gradient"),
    Given("batch.ids", "input"),
    Given("scale", "parameter"),
    Given("bias", "parameter"),
)


def made(phase: str) -> Origin:
    """Of an operand that a matmul of a phase computed."""
    metadata = Metadata(f"{phase}/layer/mm")
    shape = Shape("f32", (64,))
    return Origin((), Instruction("d", "dot", shape, (), (), metadata, Attributes(), 0))


FACTS = Facts(
    kind="all-reduce",
    is_windowed=False,
    num_elements=64,
    is_numbers=False,
    origin=made("backward"),
    goes_into=(),
    is_output=False,
    is_after=False,
    scope=Scope("backward", "layer", "mm"),
)
FORWARD = {"origin": made("forward"), "scope": Scope("forward", "layer", "mm")}
UPDATE = {"origin": made("update"), "scope": Scope("update", "", "add")}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        # gradients
        ({"goes_into": ("w",)}, Part("gradient reduction", "w", "backward")),
        (
            {"goes_into": ("w",), "kind": "reduce-scatter", "scope": Scope()},
            Part("gradient reduction", "w", "backward"),
        ),
        (  # joined with something of the update
            {"goes_into": ("w",), "scope": Scope("update", "", "norm")},
            Part("gradient reduction", "w", "backward"),
        ),
        (
            {"goes_into": ("w",), "is_numbers": True, "num_elements": 1},
            Part("gradient reduction", "w", "backward"),
        ),
        (
            {"goes_into": ("w",), "kind": "collective-permute", "is_windowed": True},
            Part("gradient reduction", "w", "backward"),
        ),
        ({"is_output": True}, Part("gradient reduction", "", "backward")),
        (
            {"goes_into": ("a", "b"), "kind": "reduce-scatter"},
            Part("gradient reduction", "a, b", "backward"),
        ),
        (
            {"goes_into": ("a", "b", "c")},
            Part("gradient reduction", "a and 2 more", "backward"),
        ),
        (
            {"goes_into": ("w",), "kind": "all-gather"},
            Part("reshard", "w", "backward"),
        ),
        # weights
        (
            {"origin": Origin((0,)), "kind": "all-gather"},
            Part("weight gather", "w", "backward"),
        ),
        (
            {"origin": Origin((0, 4, 5)), "kind": "all-gather"},
            Part("weight gather", "w and 2 more", "backward"),
        ),
        (
            {"origin": Origin((0, 3)), "kind": "all-gather", "num_elements": 2},
            Part("weight gather", "w", "backward"),
        ),
        ({"origin": Origin((0,))}, Part("weight gather", "w", "backward")),
        (
            {
                "origin": Origin((0,)),
                "kind": "collective-permute",
                "is_windowed": True,
                "goes_into": ("w",),
            },
            Part("weight gather", "w", "backward"),
        ),
        (
            {"origin": Origin((0,)), "kind": "all-to-all"},
            Part("reshard", "w", "backward"),
        ),
        (
            {"origin": Origin((0,)), "kind": "all-gather", "scope": UPDATE["scope"]},
            Part("optimizer", "w", "update"),
        ),
        # state and batch
        (
            {"origin": Origin((1,)), "kind": "all-gather"},
            Part("optimizer", "optimizer.exp_avg[w]", "backward"),
        ),
        (
            {"origin": Origin((2,)), "kind": "all-gather"},
            Part("optimizer", "grad[w]", "backward"),
        ),
        (
            {"origin": Origin((3,)), "kind": "all-gather"},
            Part("input", "batch.ids", "backward"),
        ),
        # update
        (UPDATE, Part("optimizer", "", "update")),
        (
            {**UPDATE, "goes_into": ("w",), "kind": "all-gather"},
            Part("optimizer", "w", "update"),
        ),
        (
            {**UPDATE, "goes_into": ("w",)},  # a factored moment
            Part("optimizer", "w", "update"),
        ),
        # scalars
        ({"is_numbers": True, "num_elements": 23}, Part("scalar", "", "backward")),
        ({"num_elements": 4}, Part("scalar", "", "backward")),
        ({**UPDATE, "is_numbers": True}, Part("scalar", "", "update")),
        # activations
        (FORWARD, Part("activation", "", "forward")),
        ({**FORWARD, "is_output": True}, Part("activation", "", "forward")),
        ({**FORWARD, "kind": "all-gather"}, Part("activation", "", "forward")),
        (
            {**FORWARD, "kind": "collective-permute", "is_windowed": True},
            Part("activation", "", "forward"),
        ),
        ({**FORWARD, "kind": "all-to-all"}, Part("reshard", "", "forward")),
        (
            {
                "kind": "all-gather",
                "scope": Scope("forward", "layer", "custom_sharding"),
            },
            Part("reshard", "", "forward"),
        ),
        ({"scope": Scope()}, Part("activation", "", "")),
        # nothing is told
        ({"scope": Scope(), "is_after": True}, Part("optimizer", "", "update")),
        ({"scope": Scope(), "origin": Origin()}, Part("unknown", "", "")),
        ({"origin": Origin()}, Part("activation", "", "backward")),
    ],
)
def test_role(changes: dict[str, object], wanted: Part) -> None:
    facts = dataclasses.replace(FACTS, **changes)
    assert part(facts, INPUTS) == wanted
