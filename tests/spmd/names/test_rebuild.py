"""Containers keep their type and what they carry."""

import collections
import dataclasses
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
import torch

from spmd._names.rebuild import children, leaves, rebuild


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any = None


@dataclasses.dataclass
class Derived:
    x: Any
    total: Any = dataclasses.field(init=False, default=5)

    def __post_init__(self):
        self.extra = "kept"


class Fixed(Mapping):
    """A mapping that cannot be filled, nor made from a dict."""

    def __init__(self):
        pass

    def __getitem__(self, key):
        return {"a": 1}[key]

    def __iter__(self):
        return iter(["a"])

    def __len__(self):
        return 1


def ten_times(leaf):
    return leaf * 10


@pytest.mark.parametrize(
    ("tree", "wanted"),
    [
        (1, 10),
        ([1, [2]], [10, [20]]),
        ((1,), (10,)),
        ({"a": {"b": 1}}, {"a": {"b": 10}}),
        (Pair(1, (2,)), Pair(10, (20,))),
        (Frozen(1, 2), Frozen(10, 20)),
        (collections.OrderedDict(a=1), collections.OrderedDict(a=10)),
        (types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 10})),
        (torch.Size([1, 2]), torch.Size([10, 20])),
    ],
)
def test_containers_keep_their_type(tree, wanted):
    made = rebuild(tree, ten_times)
    assert made == wanted
    assert type(made) is type(tree)


def test_defaultdict_keeps_its_factory():
    made = rebuild(collections.defaultdict(list, a=1), ten_times)
    assert made["a"] == 10
    assert made["absent"] == []


def test_dataclass_keeps_what_init_does_not_take():
    old = Derived(1)
    made = rebuild(old, ten_times)
    assert (made.x, made.total, made.extra) == (10, 50, "kept")
    assert (old.x, old.total) == (1, 5)


def test_dataclass_classes_are_leaves():
    assert children(Derived) is None


def test_hugging_face_containers():
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding({"input_ids": 1}, encoding=None)
    made = rebuild(encoding, ten_times)
    assert type(made) is transformers.BatchEncoding
    assert made.input_ids == 10
    assert encoding.input_ids == 1
    output = transformers.modeling_outputs.CausalLMOutput(loss=1, logits=2)
    made = rebuild(output, ten_times)
    assert type(made) is type(output)
    assert (made.loss, made["logits"], made.hidden_states) == (10, 20, None)


def test_leaves_come_in_the_order_of_rebuild():
    tree = {"a": [1, Pair(2, 3)], "b": Frozen(4, (5,))}
    seen = []
    rebuild(tree, seen.append)
    assert seen == [leaf for _, leaf in leaves(tree)] == [1, 2, 3, 4, 5]
    assert [path for path, _ in leaves(tree)][1:4] == [
        "batch['a'][1].x",
        "batch['a'][1].y",
        "batch['b'].x",
    ]


def test_a_mapping_that_cannot_be_made_is_named():
    with pytest.raises(TypeError, match="a batch holds a Fixed, which can neither"):
        rebuild(Fixed(), ten_times)
