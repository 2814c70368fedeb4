import pytest
import torch
import torch.nn.functional as F

from spmd._remat.draws import KeepDraws, RepeatDraws


@pytest.mark.parametrize(
    "draw",
    [
        lambda: F.dropout(torch.ones(64), 0.5),
        lambda: torch.randn(8) + torch.rand(8),
        lambda: torch.empty(8).normal_(),
        lambda: torch.bernoulli(torch.full((64,), 0.5, dtype=torch.float64)),
    ],
)
def test_the_same_is_drawn_each_time(draw):
    drawn = []
    with KeepDraws(drawn):
        first = draw()
    again = RepeatDraws(drawn)
    for _ in range(2):
        with again:
            second = draw()
        assert second.dtype == first.dtype
        torch.testing.assert_close(second, first)
    assert not torch.equal(draw(), first)


def test_a_mask_takes_a_byte_for_each_element():
    drawn = []
    with KeepDraws(drawn):
        F.dropout(torch.ones(64), 0.5)
    assert [(t.dtype, d) for t, d in drawn] == [(torch.bool, torch.float32)]


def test_other_operations_are_left_alone():
    drawn = []
    with KeepDraws(drawn):
        torch.ones(3) * 2
    assert drawn == []
