import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import torch

from spmd._names.names import by_parameter, call_leaves, dotted

X, Y, Z = torch.ones(1), torch.ones(2), torch.ones(3)


def fn(batch: Any, flag: bool = False, *rest: Any, key: Any = None, **more: Any) -> Any:
    return batch


@dataclasses.dataclass
class Batch:
    x: Any
    y: Any = 3


def names(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
    return call_leaves(fn, args, kwargs)[0]


def test_arguments_by_the_names_of_the_parameters():
    assert names(X) == {"batch": X}
    assert names(X, Y, Z) == {"batch": X, "flag": Y, "args.2": Z}
    assert names(X, key=Y, late=Z) == {"batch": X, "key": Y, "late": Z}


def test_paths_inside_containers():
    assert names({"ids": X, "more": [Y, Batch(Z)]}) == {
        "batch.ids": X,
        "batch.more.0": Y,
        "batch.more.1.x": Z,
    }


@pytest.mark.parametrize(
    "thing",
    [functools.partial(fn, key=1), Batch.__init__, print, len, torch.add, Batch],
    ids=["partial", "method", "print", "len", "torch.add", "class"],
)
def test_any_callable(thing):
    found, _ = call_leaves(thing, (X, Y), {})
    assert len(found) == 2


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: Any) -> Any:
        return x


def test_a_callable_that_cannot_be_remembered():
    assert list(call_leaves(Unhashable(), (X,), {})[0]) == ["x"]


def test_other_leaves_by_value_and_type():
    def other(value: Any) -> Any:
        return call_leaves(fn, (X, value), {})[1]

    assert other(None) == (("flag", None),)
    assert other("text") == other("te" + "xt") == (("flag", "text"),)
    assert other(1) != other(True) and other(1) != other(1.0) and other(2) == other(2)
    assert other(torch.float32) == other(torch.float32) != other(torch.int32)
    thing = object()
    assert other(thing) == other(thing) != other(object())
    array = np.ones(2)
    assert other(array) == other(array) != other(np.ones(2))
    hash(other(array))


def test_by_parameter():
    assert by_parameter(fn, (1, 2, 3), {"z": 4}) == {
        "batch": 1,
        "flag": 2,
        "args.2": 3,
        "z": 4,
    }


def test_dotted():
    assert dotted("['a'][0].b['c d']") == ".a.0.b.c d"
    assert dotted("[3]") == ".3"
