"""Comparing keys and shapes."""

import pytest

from spmd.checkpoint._match import match


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
