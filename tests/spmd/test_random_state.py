"""Random generators come back as they were."""

import random

import numpy as np
import torch

from spmd import _random_state
from spmd._torch_xla import graph as torch_xla_graph
from spmd.checkpoint._write import packed
from tests.on_device import sync


def draw():
    return torch.rand(2).tolist(), random.random(), random.gauss(0, 1), np.random.rand()


def test_the_host():
    random.gauss(0, 1)  # keeps a second number
    state = _random_state.host_state()
    wanted = draw()
    assert draw() != wanted
    _random_state.set_host_state(state)
    assert draw() == wanted


def test_it_can_be_written():
    assert packed(_random_state.all_states(), "random")


def test_the_devices():
    state = _random_state.all_states()
    one = torch.rand(3, device="xla")
    sync()
    _random_state.set_all_states(state)
    two = torch.rand(3, device="xla")
    sync()
    assert torch.equal(one.cpu(), two.cpu())
    assert torch_xla_graph.seed() != state["devices"]


def test_comparing():
    one = _random_state.host_state()
    assert _random_state.same(one, _random_state.host_state())
    for change in (lambda: torch.rand(1), random.random, np.random.rand):
        _random_state.set_host_state(one)
        change()
        assert not _random_state.same(one, _random_state.host_state())
    assert not _random_state.same(one, {k: v for k, v in one.items() if k != "numpy"})
    less = {k: v for k, v in one.items() if k != "numpy"}
    assert _random_state.same(less, less)
