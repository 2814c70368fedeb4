"""Comparing keys and shapes."""

import pytest
import torch

from spmd.checkpoint._match import match, matched
from spmd.checkpoint._parts import Holding, Part
from spmd.checkpoint._places import Place, Places


def kinds(**shapes):
    return {key: ("float32", shape) for key, shape in shapes.items()}


def test_tied_names_are_enough_once():
    found = match({"a": (2,)}, {"b": "a"}, kinds(b=(2,)), where="x")
    assert found.found == {"a": "b"} and found.missing == found.unexpected == ()
    both = match({"a": (2,)}, {"b": "a"}, kinds(a=(2,), b=(2,)), where="x")
    assert both.found == {"a": "a"} and both.unexpected == ()


def test_long_lists_are_cut():
    wanted = {f"a{i}": (1,) for i in range(20)}
    with pytest.raises(ValueError, match="and 12 more missing from the checkpoint"):
        match(wanted, {}, {}, where="x")
    other = kinds(**{key: (2,) for key in wanted})
    with pytest.raises(ValueError, match="and 12 more of another shape") as caught:
        match(wanted, {}, other, where="x", strict=False)
    assert "strict=False" not in str(caught.value)


def test_not_strict():
    found = match(
        {"a": (1,), "c": ()}, {}, kinds(a=(1,), b=()), where="x", strict=False
    )
    assert (found.missing, found.unexpected) == (("c",), ("b",))


def test_what_a_model_holds_is_matched_as_it_is_saved():
    stack, tied = torch.empty(2, 3), torch.empty(4)
    places = Places(
        tuple(
            Place(k, lambda t=t: t, print) for k, t in {"s": stack, "a": tied}.items()
        ),
        {"t": "s", "b": "a"},
    )

    def holding(name):
        return Holding((2, 3), tuple(Part(f"{name}{i}", (3,), (0,), i) for i in (0, 1)))

    holdings = {"s": holding("s"), "t": holding("t")}
    have = kinds(s0=(3,), t1=(3,), b=(4,))
    found = matched(places, holdings, have, where="x")
    assert found.found == {"s0": "s0", "s1": "t1", "a": "b"}
    with pytest.raises(ValueError, match=r"missing from the checkpoint: s1 \[3\]"):
        matched(places, holdings, kinds(s0=(3,), b=(4,)), where="x")
