import pytest
import torch

from fsdpv2._counted_values import VALUES, drop_out, shape_and_dtype

LAST = 2**24 - 1
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def words(*pairs):
    first, second = torch.tensor(pairs, dtype=torch.int32).T
    return first, second


ENDS = words((0, 0), (0, LAST), (LAST, 0), (LAST, LAST))


def value(name, dtype=torch.float32, drawn=ENDS, **given):
    found = VALUES[name](drawn, given, dtype)
    assert found.dtype == dtype
    return found


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_ends_of_each_range(dtype):
    unit = value("rand", dtype)
    assert unit.min() == 0
    assert 0.99 < unit.max() < 1
    assert value("exponential", dtype, lambd=1.0).min() > 0
    for name in ("randn", "exponential"):
        found = value(name, dtype, lambd=1.0)
        assert found.isfinite().all()
        assert 5 < found.abs().max() < 18


def test_whole_numbers_take_both_words():
    drawn = words((1, 5), (0, 7), (LAST, LAST))
    found = value("randint", torch.int64, drawn, low=-3, high=2**30)
    span = 2**30 + 3
    want = [(2**24 + 5) % span - 3, 4, (2**48 - 1) % span - 3]
    assert found.tolist() == want
    found = value("random", torch.uint8, words((0, 300), (0, 255)), **{"from": 0})
    assert found.tolist() == [300 % 256, 255]


@pytest.mark.parametrize("high", [2**41, 0])
def test_a_range_that_cannot_be_even(high):
    with pytest.raises(ValueError, match=rf"from 0 to {high}: 1 to 2\*\*40 of them"):
        value("randint", torch.int64, low=0, high=high)


def test_values_that_need_a_floating_dtype():
    with pytest.raises(ValueError, match=r"values of torch\.int64: a floating dtype"):
        value("rand", torch.int64)


def test_chances():
    like = torch.ones(4)
    assert value("bernoulli", p=1.0, self=like).tolist() == [1, 1, 1, 1]
    assert value("bernoulli", p=0.0, self=like).tolist() == [0, 0, 0, 0]
    assert value("bernoulli", self=like * 0.5).tolist() == [1, 1, 0, 0]
    p = torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert value("bernoulli", p=p, self=like).tolist() == [0, 1, 0, 1]
    with pytest.raises(ValueError, match=r"p=1\.5; from 0 to 1 is allowed"):
        value("bernoulli", p=1.5, self=like)


def test_what_is_kept_is_scaled():
    given = {"input": torch.full((4,), 3.0), "p": 0.25}
    scaled, kept = drop_out(ENDS, given)
    assert kept.tolist() == [True, True, False, False]
    assert scaled.tolist() == [4, 4, 0, 0]
    scaled, kept = drop_out(ENDS, {**given, "p": 1.0})
    assert scaled.tolist() == [0, 0, 0, 0]


def test_shapes_and_dtypes():
    half = torch.ones(2, 3, dtype=torch.float16)
    assert shape_and_dtype({"self": half}) == ((2, 3), torch.float16)
    given = {"self": half, "dtype": torch.int64}
    assert shape_and_dtype(given) == ((2, 3), torch.int64)
    assert shape_and_dtype({"size": [4], "dtype": None}) == ((4,), torch.float32)
    given = {"size": [4], "high": 3, "dtype": 4}  # torch's number for int64
    assert shape_and_dtype(given) == ((4,), torch.int64)
    given = {"mean": half, "std": torch.ones(5, 1, 1)}
    assert shape_and_dtype(given) == ((5, 2, 3), torch.float16)
