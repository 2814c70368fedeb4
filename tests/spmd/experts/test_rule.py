"""Specs of experts, from their shapes."""

import re

import pytest

from spmd import Mesh
from spmd._experts.rule import expert_rows, is_experts, is_transposed

E, INSIDE, HIDDEN = 8, 24, 16
GATED = {"gate_up_proj": (E, 2 * INSIDE, HIDDEN), "down_proj": (E, HIDDEN, INSIDE)}
PLAIN = {"up_proj": (E, INSIDE, HIDDEN), "down_proj": (E, HIDDEN, INSIDE)}
TURNED = {
    "gate_up_proj": (E, HIDDEN, 2 * INSIDE),
    "gate_up_proj_bias": (E, 2 * INSIDE),
    "down_proj": (E, INSIDE, HIDDEN),
    "down_proj_bias": (E, HIDDEN),
}
MESH = Mesh({"fsdp": 2, "expert": 2, "tensor": 2})


def test_gate_and_up_apart():
    rows = expert_rows(GATED, MESH)
    assert rows.shapes == {
        "gate_proj": (E, INSIDE, HIDDEN),
        "up_proj": (E, INSIDE, HIDDEN),
        "down_proj": (E, HIDDEN, INSIDE),
    }
    assert rows.parameters == {
        "gate_proj": ("expert", "tensor", "fsdp"),
        "up_proj": ("expert", "tensor", "fsdp"),
        "down_proj": ("expert", "fsdp", "tensor"),
    }
    assert rows.notes == ()


def test_without_a_gate():
    rows = expert_rows(PLAIN, MESH)
    assert rows.shapes == PLAIN
    assert rows.parameters["up_proj"] == ("expert", "tensor", "fsdp")


def test_weights_the_other_way_round_and_biases():
    rows = expert_rows(TURNED, MESH)
    assert list(rows.shapes) == [
        f"{n}_proj{s}" for n in ("gate", "up", "down") for s in ("", "_bias")
    ]
    assert rows.shapes["gate_proj"] == (E, HIDDEN, INSIDE)
    assert rows.shapes["up_proj_bias"] == (E, INSIDE)
    assert rows.parameters["gate_proj"] == ("expert", "fsdp", "tensor")
    assert rows.parameters["down_proj"] == ("expert", "tensor", "fsdp")
    assert rows.parameters["up_proj_bias"] == ("expert", "tensor")
    assert rows.parameters["down_proj_bias"] == ("expert", "fsdp")


def test_interleaved_stays_one():
    rows = expert_rows(TURNED, MESH, interleaved=True)
    assert rows.shapes == TURNED
    assert rows.parameters["gate_up_proj"] == ("expert", "fsdp", None)
    assert rows.parameters["gate_up_proj_bias"] == ("expert", None)
    assert rows.parameters["down_proj"] == ("expert", "tensor", "fsdp")
    assert "alternates gate and up" in rows.notes[0]


@pytest.mark.parametrize(
    ("axes", "wanted"),
    [
        ({"fsdp": 8}, (None, None, "fsdp")),
        ({"expert": 8}, ("expert", None, None)),
        ({"fsdp": 2, "tensor": 4}, (None, "tensor", "fsdp")),
        ({"fsdp": 4, "expert": 2, "tensor": 1}, ("expert", None, "fsdp")),
    ],
    ids=["fsdp", "expert", "tensor", "axis_of_one"],
)
def test_axes_that_are_not_there(axes, wanted):
    assert expert_rows(GATED, Mesh(axes)).parameters["up_proj"] == wanted


def test_axes_by_other_names():
    mesh = Mesh({"data": 2, "ep": 2, "tp": 2})
    rows = expert_rows(GATED, mesh, fsdp="data", tensor="tp", expert="ep")
    assert rows.parameters["down_proj"] == ("ep", "data", "tp")
    whole = expert_rows(GATED, mesh, fsdp=None, tensor=None, expert=None)
    assert set(whole.parameters.values()) == {(None, None, None)}


def test_features_that_do_not_divide():
    rows = expert_rows(GATED, Mesh({"expert": 2, "tensor": 5}))
    assert rows.parameters["up_proj"] == ("expert", None, None)
    assert (
        "24 intermediate features do not divide over 'tensor' of size 5"
        in (rows.notes[0])
    )


def test_experts_that_do_not_divide():
    with pytest.raises(
        ValueError,
        match=re.escape(
            "8 experts do not divide over 'expert' of size 3; sizes that work: "
            "[1, 2, 4, 8]"
        ),
    ):
        expert_rows(GATED, Mesh({"expert": 3}))


@pytest.mark.parametrize(
    "shapes",
    [{"weight": (4, 4)}, {"gate_up_proj": (8, 4)}, {"up_proj": (2, 4, 4)}],
    ids=["linear", "two_dims", "no_down"],
)
def test_no_experts(shapes):
    assert not is_experts(shapes)
    with pytest.raises(ValueError, match="no experts: gate_up_proj or up_proj"):
        expert_rows(shapes, MESH)


def test_which_way_round():
    assert not is_transposed(GATED) and not is_transposed(PLAIN)
    assert is_transposed(TURNED)
    square = {"up_proj": (E, 4, 4), "down_proj": (E, 4, 4)}
    assert not is_transposed(square)
