import numpy as np
import pytest
import torch

from spmd._ops import counter_random
from spmd._ops.counter_random import BITS, threefry_module, words
from tests.counted import threefry, word_arrays


def drawn(key, shape, number=0):
    found = words(torch.tensor(key, dtype=torch.int32).to("xla"), shape, number=number)
    return [word.cpu().numpy() for word in found]


@pytest.mark.parametrize(  # known answers of Random123 for threefry2x32, 20 rounds
    ("key", "counter", "want"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        (
            (0x13198A2E, 0x03707344),
            (0x243F6A88, 0x85A308D3),
            (0xC4923A9C, 0x483DF7A0),
        ),
    ],
)
def test_the_tests_own_threefry_is_the_published_one(key, counter, want):
    assert tuple(w.item() for w in threefry(key, *counter)) == want


@pytest.mark.parametrize("shape", [(), (5,), (3, 1, 7), (16, 4, 8)], ids=str)
@pytest.mark.parametrize("key", [(123, -7), (-(2**31), 2**31 - 1)], ids=str)
def test_words_are_threefrys(key, shape):
    for number in (0, 3):
        want = word_arrays(key, shape, number=number)
        for got, word in zip(drawn(key, shape, number), want, strict=True):
            np.testing.assert_array_equal(got, word)


def test_elements_beyond_one_word_are_counted_by_two(monkeypatch):
    monkeypatch.setattr(counter_random, "_SPACE", 16)
    threefry_module.cache_clear()
    shape, key = (6, 3, 4), (5, 6)
    got = drawn(key, shape)
    threefry_module.cache_clear()
    mine = [word[0] for word in threefry(key, 0, 0)]
    index = np.arange(72)
    want = threefry(mine, index % 12, index // 12)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, (b >> np.uint32(8)).reshape(shape))


def test_more_elements_than_can_be_counted():
    with pytest.raises(ValueError, match=r"more than two words of 32 bits can count"):
        threefry_module((2**31, 2**31, 2**31), 0)


def test_words_are_even_and_unlike_those_of_other_keys_and_numbers():
    size = 2**14
    table = [
        word / 2**BITS
        for key in ((0, 0), (0, 1), (1, 0), (-1, 7))
        for number in range(3)
        for word in drawn(key, (size,), number)
    ]
    for values in table:
        assert 0 <= values.min() and values.max() < 1
        assert abs(values.mean() - 0.5) < 4 * (1 / 12 / size) ** 0.5
        counts = np.histogram(values, 64, (0, 1))[0]
        assert ((counts - size / 64) ** 2 / (size / 64)).sum() < 63 + 5 * (
            2 * 63
        ) ** 0.5
    found = np.corrcoef(np.stack(table)) - np.eye(len(table))
    assert np.abs(found).max() < 5 / size**0.5
    neighbours = [np.corrcoef(v[:-1], v[1:])[0, 1] for v in table]
    assert np.abs(neighbours).max() < 5 / size**0.5
