"""A loader goes on where it was."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import spmd
from spmd import Mesh
from spmd._batches.resume import Position, Resume, own_state

MESH = Mesh({"fsdp": 8})


class Noisy(Dataset):
    """Items that are other ones each time: loading draws numbers."""

    def __init__(self, num=40):
        self.num = num
        self.loaded = 0

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        self.loaded += 1
        return index + torch.rand(2) + random.random() + np.random.rand()


def loader(data, *, prefetch=2, fast_skip=False, **options):
    inner = DataLoader(data, batch_size=8, shuffle=True, **options)
    return spmd.ShardedLoader(inner, MESH, prefetch=prefetch, fast_skip=fast_skip)


def plain(num=40):
    return TensorDataset(torch.arange(float(num)))


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def values(batch):
    tensor = batch[0] if isinstance(batch, list | tuple) else batch
    return tensor.cpu().tolist()


def restart(make, at, epochs=3, draw=False):
    """All batches; and those of a run that is restarted after `at` of them."""
    from spmd import _random_state

    seed(0)
    one, whole, saved = make(), [], None
    for _ in range(epochs):
        for batch in one:
            whole.append(values(batch))
            if draw:
                whole[-1].append(torch.rand(1).item())
            if len(whole) == at:
                saved = one.state_dict(), _random_state.host_state()
    seed(1)
    two, rest = make(), []
    _random_state.set_host_state(saved[1])
    two.load_state_dict(saved[0])
    for _ in range(two.epoch, epochs):
        for batch in two:
            rest.append(values(batch))
            if draw:
                rest[-1].append(torch.rand(1).item())
    return whole, rest


@pytest.mark.parametrize("at", [1, 3, 5, 8, 15])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("fast_skip", [False, True])
def test_the_batches_that_are_left(at, prefetch, fast_skip):
    """Five batches an epoch; also in the last batch of one, and of the last."""
    whole, rest = restart(
        lambda: loader(plain(), prefetch=prefetch, fast_skip=fast_skip), at, draw=True
    )
    assert rest == whole[at:]


@pytest.mark.parametrize("at", [1, 3, 7])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_data_that_is_drawn_when_it_is_loaded(at, prefetch):
    whole, rest = restart(lambda: loader(Noisy(), prefetch=prefetch), at)
    assert rest == whole[at:]


def test_with_a_step_that_draws_and_data_that_does_without_a_thread():
    whole, rest = restart(lambda: loader(Noisy(), prefetch=0), 3, draw=True)
    assert rest == whole[3:]


def test_fast_skip_does_not_load_what_it_skips():
    for fast in (False, True):
        data = Noisy()
        one = loader(data, prefetch=0, fast_skip=fast)
        steps = iter(one)
        for _ in range(3):
            next(steps)
        state = one.state_dict()
        data.loaded = 0
        two = loader(data, prefetch=0, fast_skip=fast)
        two.load_state_dict(state)
        assert len(list(two)) == 2
        assert data.loaded == (16 if fast else 40)
        assert len(list(two)) == 5  # only the first epoch is shorter


def test_fast_skip_of_data_without_indices():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from torch.arange(40.0)

    inner = DataLoader(Stream(), batch_size=8)
    one = spmd.ShardedLoader(inner, MESH, fast_skip=True)
    next(iter(one))
    state = one.state_dict()
    slow = spmd.ShardedLoader(inner, MESH)
    slow.load_state_dict(state)
    assert [b.cpu().tolist()[0] for b in slow] == [8.0, 16.0, 24.0, 32.0]
    one.load_state_dict(state)
    with pytest.raises(ValueError, match="fast_skip needs a DataLoader with batches"):
        next(iter(one))


class Stateful:
    """A loader that goes to positions by itself."""

    def __init__(self):
        self.at = 0
        self.began = []

    def __iter__(self):
        self.began.append(self.at)
        while self.at < 5:
            self.at += 1
            yield torch.full((8,), float(self.at))
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_a_loader_that_knows_its_position():
    one = spmd.ShardedLoader(Stateful(), MESH)
    steps = iter(one)
    next(steps), next(steps)
    state = one.state_dict()
    assert state["own"] == {"at": 2}  # not how far the thread is ahead
    inner = Stateful()
    two = spmd.ShardedLoader(inner, MESH)
    two.load_state_dict(state)
    assert [int(b.cpu()[0]) for b in two] == [3, 4, 5]
    assert inner.began == [2]
    with pytest.raises(ValueError, match="a list cannot"):
        spmd.ShardedLoader([], MESH).load_state_dict(state)
    assert own_state([]) is None


def test_epochs_are_counted():
    one = loader(plain(16), prefetch=0)
    assert one.epoch == 0
    list(one)
    assert one.epoch == 1 and one.state_dict()["batches"] == 0
    steps = iter(one)
    next(steps)
    assert one.epoch == 1 and one.state_dict()["batches"] == 1
    list(one)  # the epoch before was left before its end
    assert one.epoch == 3


def test_between_epochs():
    one = loader(plain(16))
    list(one)
    state = one.state_dict()
    two = loader(plain(16))
    two.load_state_dict(state)
    assert two.epoch == 1
    assert len(list(two)) == 2 and two.epoch == 2


def test_a_position_as_values():
    position = Position(epoch=2, batches=3)
    assert Position.from_dict(position.as_dict()).as_dict() == position.as_dict()
    assert list(Resume(Position(), [1, 2], fast_skip=False).source(prefetch=True)) == [
        1,
        2,
    ]
