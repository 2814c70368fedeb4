import gc

import pytest
import torch
from torch import nn

import spmd
from spmd._replay.layout import Layouts, View, describe, layouts_for
from spmd._torch_xla import graph as torch_xla_graph
from tests.on_device import on_device, split_by, sync
from tests.spmd.training import MESH

ROWS = ("fsdp", None)
SPLIT = "float32[8, 4] {devices=[8,1]0,1,2,3,4,5,6,7}"
WHOLE = "float32[8, 4] {replicated}"


def state() -> list[torch.Tensor]:
    split, whole = (on_device(8, 4).requires_grad_() for _ in "ab")
    spmd.mark_sharding(split, MESH, ROWS)
    sync()
    return [split, whole]


def stamps(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    return View.of(tensors).stamps


@torch.no_grad()
def multiply(tensor: torch.Tensor) -> None:
    tensor.mul_(2)


@pytest.mark.parametrize(
    "change",
    [
        multiply,
        lambda t: setattr(t, "data", on_device(8, 4)),
        lambda t: setattr(t, "data", t.detach() * 2),
    ],
)
def test_a_stamp_changes_with_the_data(change):
    tensors = state()
    first, second = stamps(tensors)
    assert stamps(tensors) == [first, second]
    change(tensors[0])
    assert stamps(tensors)[0] != first and stamps(tensors)[1] == second


def test_layouts_are_found_and_remembered(monkeypatch):
    layouts, tensors = Layouts(), state()
    assert layouts.of(tensors, stamps(tensors)) == (SPLIT, WHOLE)
    monkeypatch.setattr(torch_xla_graph, "layouts", None)  # not asked again
    assert layouts.of(tensors, stamps(tensors)) == (SPLIT, WHOLE)


def test_what_a_step_left_is_not_asked_for():
    layouts, tensors = Layouts(), state()
    before, after = View.of(tensors), View.of(tensors)
    after.layouts = ("one", "two")
    note = layouts.note()
    note.take(before, after)
    assert layouts.of(tensors, stamps(tensors)) == ("one", "two")


def test_what_a_step_found_is_gone_with_what_it_left():
    """Of many calls in a row only the first and the last view count."""
    layouts, tensors = Layouts(), state()
    found = View.of(tensors)
    found.layouts = ("old", "old")
    note = layouts.note()
    note.take(found, found)
    others = state()
    left = View.of(others)
    left.layouts = ("one", "two")
    note.take(View([1, 2], [0, 0], ("x", "x")), left)
    assert layouts.of(others, stamps(others)) == ("one", "two")
    assert set(layouts._known) == set(left.stamps)
    assert layouts.of(tensors, stamps(tensors)) == (SPLIT, WHOLE)


def test_what_a_dead_step_left_is_asked_for():
    layouts, tensors = Layouts(), state()
    view = View.of(tensors)
    view.layouts = ("one", "two")
    note = layouts.note()
    note.take(view, view)
    del note
    gc.collect()
    assert layouts.of(tensors, stamps(tensors)) == (SPLIT, WHOLE)


def test_what_one_step_left_and_another_found_is_known_no_more():
    layouts, tensors = Layouts(), state()
    first, second = View.of(tensors), View([1, 2], [0, 0], ("x", "y"))
    first.layouts = ("one", "two")
    one, other = layouts.note(), layouts.note()
    one.take(first, second)
    other.take(second, first)  # as a step that undoes the other
    assert layouts.of(tensors, stamps(tensors)) == ("one", "two")
    assert one.left is other.left is None  # taken once


def test_a_view_is_of_the_same_until_data_changes():
    tensors = state()
    view = View.of(tensors)
    assert view.is_of_same(View.of(tensors))
    assert not view.is_of_same(View.of(tensors[:1]))
    assert not view.is_of_same(View.of(tensors[::-1]))
    multiply(tensors[1])
    assert not view.is_of_same(View.of(tensors))


def test_an_annotated_tensor_is_split_again():
    layouts, tensors = Layouts(), state()
    tensors[0].data = on_device(8, 4)
    assert spmd.get_sharding(tensors[0]) is not None
    found = stamps(tensors)
    if layouts.of(tensors, found) is None:  # it has another stamp now
        found = stamps(tensors)
    assert layouts.of(tensors, found) == (SPLIT, WHOLE)
    assert split_by(tensors[0], MESH, ROWS)
    assert torch.equal(tensors[0].cpu(), on_device(8, 4).cpu())


def test_describe():
    assert describe(state()) == [SPLIT, WHOLE]
    assert describe([on_device(3, dtype=torch.bfloat16)]) == [
        "bfloat16[3] {replicated}"
    ]


def test_steps_over_one_model_share_a_memory_that_goes_with_it():
    model = nn.Linear(2, 2)
    assert layouts_for(model) is layouts_for(model)
    assert layouts_for(None) is not layouts_for(None)
    from spmd._replay import layout

    gc.collect()
    num = len(layout._by_model)
    del model
    gc.collect()
    assert len(layout._by_model) == num - 1
