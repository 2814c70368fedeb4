from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh, Plan
from tests.on_device import as_tiles, constraints, on_device

FLAT = Mesh({"fsdp": 8})
ROWS = ("fsdp", None)
COLUMNS = (None, "fsdp")


class Returns(nn.Module):
    """Has a submodule `part` whose output is what it was given a function for."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.part = Part(make)

    def forward(self, x: torch.Tensor) -> Any:
        return self.part(x)


class Part(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(x * 2)


def run(make: Any, outputs: dict[str, Any]) -> Any:
    model = spmd.shard_module(Returns(make), FLAT, Plan({}, outputs=outputs))
    return model(on_device(8, 8))


def test_a_tensor():
    out = run(lambda x: x, {"part": ROWS})
    assert constraints(out) == [as_tiles(FLAT, ROWS)]


def test_the_root():
    out = run(lambda x: x, {"": ROWS})
    assert constraints(out) == [as_tiles(FLAT, ROWS)]


def test_every_time_it_runs():
    model = spmd.shard_module(
        Returns(lambda x: x), FLAT, Plan({}, outputs={"part": ROWS})
    )
    for _ in range(2):
        assert constraints(model(on_device(8, 8))) == [as_tiles(FLAT, ROWS)]


@pytest.mark.parametrize("kind", [tuple, list])
def test_of_several_those_of_the_specs_rank(kind):
    a, b, c, d = run(lambda x: kind((x, x[0], None, {"y": x * 3})), {"part": ROWS})
    assert constraints(a) == [as_tiles(FLAT, ROWS)] and constraints(b) == []
    assert c is None and constraints(d["y"]) == [as_tiles(FLAT, ROWS)]


def test_one_of_several_by_its_index():
    a, b = run(lambda x: (x, x * 3), {"part[1]": ROWS})
    assert constraints(a) == [] and constraints(b) == [as_tiles(FLAT, ROWS)]


def test_an_index_before_the_whole_takes_precedence():
    a, b = run(lambda x: (x + 1, x * 3), {"part[1]": COLUMNS, "part": ROWS})
    assert constraints(a) == [as_tiles(FLAT, ROWS)]
    assert constraints(b) == [as_tiles(FLAT, COLUMNS)]


def test_an_output_without_tensors_is_left_alone():
    assert run(lambda x: None, {"part": ROWS}) is None


def test_another_rank_is_refused():
    text = r"output of part \[8, 8\]: pattern 'part' gives the spec .* for 2 dims"
    with pytest.raises(ValueError, match=text):
        run(lambda x: x, {"part": ("fsdp", None, None)})
    with pytest.raises(ValueError, match=text):
        run(lambda x: (x, x), {"part": ("fsdp", None, None)})


@pytest.mark.parametrize("make", [lambda x: (x,), lambda x: {"a": x}, lambda x: None])
def test_an_index_that_is_not_there_is_refused(make):
    with pytest.raises(ValueError, match=r"output of part is a .* picks output 1"):
        run(make, {"part[1]": ROWS})
