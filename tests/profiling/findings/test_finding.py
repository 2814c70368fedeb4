"""The noun and what a proof says."""

import pytest

from profiling import Change, Figures, Finding, Fix, Proof

FOUND = Finding("wide-dtype", "problem", "w", "w is wide", ("so it is",), False)


def figures(wire: int, memory: int, step: float | None, moved: int = 0) -> Figures:
    return Figures(wire, memory, step, 0, moved, None)


def test_repr_and_severity():
    assert repr(FOUND) == "Finding(problem wide-dtype at w)"
    assert FOUND.is_problem
    assert repr(Finding("many-small", "note", "", "", (), True)).endswith("the step)")


def test_a_fix_can_be_put_and_taken():
    change = Change(flags=(("f", True),))
    fix = Fix("do", "x = 1", "here", change, outputs={"up": ("a", None)})
    with_fix = FOUND.with_fix(fix)
    assert with_fix.fix is fix and FOUND.fix is None
    without = with_fix.with_fix(None, tried=("in vain",))
    assert without.fix is None and without.tried == ("in vain",)
    with pytest.raises(TypeError):
        fix.outputs["down"] = ()  # pyright: ignore[reportIndexIssue] - it is a view


def test_what_cannot_be_tried_is_no_fix():
    with pytest.raises(ValueError, match="fix 'do more': its change is empty"):
        Fix("do more", "x = 1", "in the script", Change())


def test_an_empty_change_is_none():
    assert not Change()
    assert Change(flags=(("f", True),)) and Change(inputs=(("w", ("a",)),))


def test_gains_and_costs_are_what_is_noticeable():
    proof = Proof(figures(1000, 1000, 1.0), figures(900, 1001, 1.1), True)
    assert proof.gains == ("bytes",)
    assert proof.costs == ("time",)
    free = Proof(figures(0, 0, None), figures(10, 0, None), False)
    assert (free.gains, free.costs) == ((), ("bytes",))


def test_from_how_many_rows_on_it_sends_less():
    # 100 bytes of activations are saved, 330 of weights come instead.
    proof = Proof(figures(400, 0, 1.0, 100), figures(630, 0, 1.0, 0), True)
    assert proof.even_at == pytest.approx(3.3)
    assert Proof(figures(9, 0, 1.0, 5), figures(8, 0, 1.0), True).even_at is None
    assert Proof(figures(8, 0, 1.0), figures(9, 0, 1.0), True).even_at is None
