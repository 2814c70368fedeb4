"""`assert_collectives`: what it lets pass, and how it says what it does not."""

import pytest

from profiling.testing import Amount, assert_collectives
from tests.profiling.one_weight import program
from tests.profiling.schedules import collective, moved, schedule

ALL = {
    ("weight gather", "fsdp"): 3,
    ("gradient reduction", "fsdp"): 1,
    ("scalar", ("fsdp",)): Amount(wire_bytes=100),
    "unknown": Amount(num_runs=(1, 2), num_collectives=1),
}


def failure(expected, one=None, **options) -> str:
    with pytest.raises(AssertionError, match="something else than expected") as found:
        assert_collectives(one or schedule(), None, expected, **options)
    return str(found.value)


def test_all_that_moves():
    one = schedule()
    assert assert_collectives(one, None, ALL) is one
    assert assert_collectives(one, "h100:1x8", ALL) is one


def test_kinds():
    kinds = {"all-gather": 3, ("all-reduce", "fsdp"): 1, "collective-permute": 1}
    assert_collectives(schedule(), None, kinds)
    failure({**kinds, "all-gather": 1})


@pytest.mark.parametrize(
    ("amount", "is_met"),
    [
        (3, True),
        (1, False),
        (0, False),
        (Amount(), True),
        (Amount(num_collectives=1), True),
        (Amount(num_collectives=3), False),
        (Amount(num_runs=(3, 4)), True),
        (Amount(num_runs=(4, 9)), False),
        (Amount(wire_bytes=288), True),
        (Amount(wire_bytes=pytest.approx(300, rel=0.1)), True),
        (Amount(wire_bytes=pytest.approx(300, rel=0.01)), False),
        (Amount(num_runs=3, wire_bytes=96), False),
    ],
)
def test_amounts(amount, is_met):
    expected = {("weight gather", "fsdp"): amount}
    if is_met:
        assert_collectives(schedule(), None, expected, others=True)
    else:
        assert "! weight gather over fsdp" in failure(expected, others=True)


def test_none_is_expected():
    expected = {"activation": 0, "all-to-all": 0}
    assert_collectives(schedule(), None, expected, others=True)
    assert "activation  expected some; found none" in failure(
        {"activation": Amount()}, others=True
    )
    assert_collectives(schedule(collectives=()), None, {})


def test_what_nothing_is_expected_of():
    text = failure({k: v for k, v in ALL.items() if k != "unknown"})
    assert "! unknown over no axes" in text
    assert "expected none; found 1 run, 1 collective, 12 bytes" in text
    assert "  cp.1  collective-permute over groups of 2: unknown, 12 B in 1" in text


def test_half_of_a_combined_collective():
    """Only what is left of it is counted as not expected."""
    both = {k: v for k, v in ALL.items() if "scalar" not in k}
    text = failure(both)
    assert "! scalar over fsdp" in text
    assert "found 1 run, 1 collective, 100 bytes" in text


def test_the_whole_failure():
    text = failure({**ALL, ("weight gather", "fsdp"): 1, "activation": 2})
    assert text == (
        "step on h100:1x8 moves something else than expected\n"
        "\n"
        "! weight gather over fsdp       expected 1 run; found 3 runs, 1 collective, "
        "288 bytes\n"
        "  gradient reduction over fsdp  expected 1 run; found 1 run, 1 collective, 300"
        " bytes\n"
        "  scalar over fsdp              expected 100 bytes; found 1 run, 1 collective,"
        " 100 bytes\n"
        "  unknown                       expected 1 to 2 runs, 1 collective; found 1 "
        "run, 1 collective, 12 bytes\n"
        "! activation                    expected 2 runs; found none\n"
        "\n"
        "collectives concerned (bytes a device sends in a step):\n"
        "  ag.1  all-gather over fsdp: weight gather, model.decoder.layers.17."
        "self_attention.output_projection.weight, forward, 288 B in 3 runs, "
        "model.py:42"
    )


def test_many_collectives_are_cut():
    many = schedule(collectives=[collective(f"c.{i}") for i in range(25)])
    text = failure({"weight gather": 0}, many)
    assert text.count("\n  c.") == 20
    assert text.endswith("and 5 more")


def test_axes_in_any_order():
    both = moved("reshard", 9)
    one = schedule(collectives=[collective("x", both, axes=("fsdp", "tensor"))])
    assert_collectives(one, None, {("reshard", ("tensor", "fsdp")): 1})
    failure({("reshard", "fsdp"): 1}, one)


def test_groups_that_no_axes_make():
    assert_collectives(schedule(), None, {("unknown", ()): 1}, others=True)


def test_a_program():
    found = assert_collectives(program(8), "cpu:8", {}, others=True)
    sums = {t.key: t.num_runs for t in found.totals("kind")}
    assert sums
    assert_collectives(program(8), "cpu:8", sums)
    with pytest.raises(AssertionError, match="on cpu:8 moves something else"):
        assert_collectives(program(8), "cpu:8", {})


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("gather", "'gather' is neither a role .weight gather, .* nor a kind .all-ga"),
        (("scalar", "data"), "no axis 'data'; the mesh has fsdp, tensor"),
    ],
)
def test_keys_that_are_none(key, words):
    with pytest.raises(ValueError, match=words):
        assert_collectives(schedule(), None, {key: 1})


def test_no_mesh():
    with pytest.raises(ValueError, match="no axis 'fsdp'; there is no mesh"):
        assert_collectives(schedule(mesh=None), None, {("scalar", "fsdp"): 1})


def test_targets():
    with pytest.raises(ValueError, match="is for h100:1x8, not cpu:8"):
        assert_collectives(schedule(), "cpu:8", {})
    with pytest.raises(ValueError, match="is for no target, not cpu:8"):
        assert_collectives(schedule(target=None), "cpu:8", {})
    with pytest.raises(ValueError, match="flags do not apply"):
        assert_collectives(schedule(), None, {}, flags={"xla_a": 1})
    with pytest.raises(ValueError, match="not compiled yet: say for what"):
        assert_collectives(program(8), None, {})
