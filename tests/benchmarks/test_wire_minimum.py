"""The closed form of wire bytes, against sums by hand and `profiling.wire_bytes`."""

from __future__ import annotations

from fractions import Fraction

import pytest

from benchmarks.wire_minimum import PARTS, Work, minimum, share
from profiling import wire_bytes

# 2 layers of 800 bytes, an embedding and a head of 640 each, 4 tokens of 16 bytes.
WORK = Work(2, 800, 48, 640, 640, 4, 16)
BETWEEN = 4 * 16


def whole(**options):
    return minimum(WORK, **options)


@pytest.mark.parametrize("num_devices", [1, 2, 8])
def test_shares_are_those_of_the_rings(num_devices):
    size = 64 * num_devices
    given = {"operand_bytes": size, "output_bytes": size}
    for kind, passes in (("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 2)):
        sent = wire_bytes(kind, num_devices, **given)
        assert sent == passes * share(num_devices) * size, kind


def test_one_device_sends_nothing():
    assert whole(axes={}) == dict.fromkeys(PARTS, 0)


def test_fully_sharded():
    """Weights once each way, norms for all, the rows of 4 tokens there and back."""
    weights = 2 * 800 + 640
    assert whole(axes={"fsdp": 4}) == {
        "weight gather": weights * Fraction(3, 4),
        "gradient reduction": (weights + 2 * 48) * Fraction(3, 4),
        "activation": 2 * BETWEEN * Fraction(3, 4),
    }


def test_layers_that_are_computed_again_are_gathered_again():
    once, again = (whole(axes={"fsdp": 4}, again=a) for a in (False, True))
    assert again["weight gather"] - once["weight gather"] == 1600 * Fraction(3, 4)
    assert again["gradient reduction"] == once["gradient reduction"]


def test_a_small_table_is_gathered():
    small = Work(2, 800, 0, 32, 640, 4, 16)
    found = minimum(small, {"fsdp": 4})
    assert found["weight gather"] == (1600 + 640 + 32) * Fraction(3, 4)
    assert found["activation"] == 0


def test_replicas_reduce_a_piece_of_each_gradient():
    one, two = (whole(axes={"replica": r, "fsdp": 4}) for r in (1, 2))
    assert one["weight gather"] == two["weight gather"]
    pieces = Fraction(2 * 800 + 640 + 640, 4)
    norms = 2 * 48 * (share(8) - share(4))
    grown = two["gradient reduction"] - one["gradient reduction"]
    assert grown == 2 * Fraction(1, 2) * pieces + norms


def test_tensor_is_four_reductions_a_layer_and_two():
    found = whole(axes={"tensor": 4})
    numbers = 3 * 4 * 4
    assert found["activation"] == 2 * Fraction(3, 4) * (10 * BETWEEN + numbers)
    assert found["weight gather"] == found["gradient reduction"] == 0


def test_a_split_sequence_only_adds_the_norms():
    whole_, split = (whole(axes={"tensor": 4}, sequence=s) for s in (False, True))
    assert split["activation"] == whole_["activation"]
    assert split["gradient reduction"] == 2 * Fraction(3, 4) * 48


def test_both_gather_a_part_of_a_weight():
    found = whole(axes={"fsdp": 2, "tensor": 4})
    assert found["weight gather"] == Fraction(1600 + 640, 4) / 2


def test_another_axis():
    with pytest.raises(ValueError, match="no formula for the axis 'expert'"):
        whole(axes={"expert": 2})
