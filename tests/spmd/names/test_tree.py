import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import pytest
import torch

from spmd._names.tree import map_tensors, named_leaves

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Output:
    logits: Any
    loss: Any = None


A, B, C = (torch.full((i,), float(i)) for i in (1, 2, 3))


@pytest.mark.parametrize(
    "tree, paths",
    [
        (A, [""]),
        ((A, [B]), ["[0]", "[1][0]"]),
        ({"a": A, "b": {"c": B}}, ["['a']", "['b']['c']"]),
        (OrderedDict(a=A), ["['a']"]),
        (UserDict(a=A), ["['a']"]),
        (Pair(A, B), ["[0]", "[1]"]),
        (Output(A), [".logits", ".loss"]),
        ([Output(logits=(A, None))], ["[0].logits[0]", "[0].logits[1]", "[0].loss"]),
        (Output, [""]),
        ((), []),
        ("text", [""]),
    ],
    ids=str,
)
def test_leaves_come_with_their_paths(tree, paths):
    assert [path for path, _ in named_leaves(tree)] == paths


def test_a_prefix_is_put_before_each_path():
    assert [path for path, _ in named_leaves([A], "x")] == ["x[0]"]


def test_hugging_faces_containers_are_containers():
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding({"input_ids": A})
    assert [path for path, _ in named_leaves(encoding)] == ["['input_ids']"]
    output = transformers.modeling_outputs.CausalLMOutput(logits=A)
    assert [path for path, _ in named_leaves(output)] == ["['logits']"]


def test_map_tensors_visits_tensors_only_and_in_order():
    seen: list[torch.Tensor] = []
    tree = {"a": [A, None, 3], "b": Output(B, loss=C)}
    assert map_tensors(seen.append, tree) is None
    assert all(x is y for x, y in zip(seen, (A, B, C), strict=True))
