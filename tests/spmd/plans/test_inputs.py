from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh, Plan
from tests.on_device import as_tiles, constraints, on_device, sync

FLAT = Mesh({"fsdp": 8})
ROWS = ("fsdp", None)
COLUMNS = (None, "fsdp")


class Part(nn.Module):
    """Keeps what it was given."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.args, self.kwargs = args, kwargs
        return args


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.part(*args, **kwargs)


def run(inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Part:
    model = spmd.shard_module(Root(), FLAT, Plan({}, inputs=inputs))
    model(*args, **kwargs)
    return model.part


def test_the_module_gets_a_value_of_its_own():
    x = on_device(8, 8) * 2
    part = run({"part": ROWS}, x)
    assert constraints(part.args[0]) == [as_tiles(FLAT, ROWS)]
    assert constraints(x) == [] and spmd.get_sharding(x) is None


def test_a_value_that_is_split_in_another_way():
    x = spmd.mark_sharding(on_device(8, 8) * 2, FLAT, COLUMNS)
    part = run({"part": ROWS}, x)
    assert spmd.get_sharding(part.args[0]).spec == ROWS
    assert spmd.get_sharding(x).spec == COLUMNS
    sync()
    assert torch.equal(part.args[0].cpu(), x.cpu())


def test_all_of_the_specs_rank_keywords_too():
    x, y, z = (on_device(*shape) * 2 for shape in ((8, 8), (8,), (8, 4)))
    part = run({"part": ROWS}, x, y, 3, other=z, nothing=None)
    assert spmd.get_sharding(part.args[0]).spec == ROWS
    assert part.args[1] is y and part.args[2] == 3
    assert spmd.get_sharding(part.kwargs["other"]).spec == ROWS
    assert part.kwargs["nothing"] is None


def test_one_by_its_place_and_the_rest():
    x, y = on_device(8, 8) * 2, on_device(8, 8) * 3
    part = run({"part[1]": COLUMNS, "part": ROWS}, x, y)
    assert [spmd.get_sharding(a).spec for a in part.args] == [ROWS, COLUMNS]


def test_only_one_by_its_place():
    x, y = on_device(8, 8) * 2, on_device(8, 8) * 3
    part = run({"part[0]": ROWS}, x, y)
    assert part.args[1] is y


def test_the_gradient_gets_the_spec_too():
    x = (on_device(8, 8) * 2).requires_grad_()
    part = run({"part": ROWS}, x * 1)
    part.args[0].sum().backward()
    assert constraints(x.grad) == [as_tiles(FLAT, ROWS)]


def test_a_module_without_tensors_is_left_alone():
    assert run({"part": ROWS}, 3).args == (3,)


def test_a_wrong_rank():
    with pytest.raises(ValueError, match=r"input of part \[8, 8\].*3 entries for 2"):
        run({"part": ("fsdp", None, None)}, on_device(8, 8))
    with pytest.raises(ValueError, match=r"input of part \[8, 8\].*'part\[0\]'"):
        run({"part[0]": ("fsdp", None, None)}, on_device(8, 8))


@pytest.mark.parametrize("given", [(), (3,)], ids=["none", "number"])
def test_an_argument_that_is_not_there(given):
    with pytest.raises(ValueError, match="picks positional argument 0, but the module"):
        run({"part[0]": ROWS}, *given)


def test_the_table_lists_them():
    plan = Plan({}, inputs={"part": ROWS})
    found = plan.resolve(FLAT, {}, ["", "part"])
    (row,) = found.inputs
    assert (row.name, row.index, row.spec) == ("part", None, ROWS)
    assert repr(found).endswith("0 outputs, 1 inputs)")


def test_a_pattern_for_a_parameter():
    with pytest.raises(ValueError, match="inputs= picks module inputs only"):
        Plan({}, inputs={"w": ROWS}).resolve(FLAT, {"w": (8, 8)}, [""])
