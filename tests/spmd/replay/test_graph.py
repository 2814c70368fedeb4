from typing import Any

import torch

from spmd._capture.record import Recorded, Source
from spmd._capture.state import Slot
from spmd._replay.graph import StepGraph, order_of
from spmd._replay.layout import View
from spmd._torch_xla import graph as torch_xla_graph
from tests.on_device import on_device, sync

CONSTANT = torch.ones(2)
SOURCES = [
    Source("rng", "rng"),
    Source("state", "b", 1),
    Source("constant", "c", value=CONSTANT),
    Source("learning_rate", "lr", 0),
    Source("batch", "x", 0),
    Source("state", "a", 0),
]


def slot(name: str, keeps: bool) -> Slot:
    def put(tensor: torch.Tensor) -> None:
        raise AssertionError

    def read() -> torch.Tensor:
        raise AssertionError

    return Slot(name, "buffer", read, put, put, keeps)


def made(updated: dict[int, int]) -> StepGraph:
    """A graph over the kept `a` and the renewed `b`, which adds `c`."""
    parts: dict[str, Any] = dict.fromkeys(Recorded.__slots__)
    parts |= {"sources": SOURCES, "updated": updated}
    parts["slots"] = [slot("a", True), slot("b", False), slot("c", False)]
    return StepGraph(b"key", Recorded(**parts), num_state=2, num_batch=1, num_groups=1)


def test_order_of_inputs_in_what_a_call_puts_together():
    assert order_of(SOURCES, 2, 1, 1) == [4, 1, 5, 3, 2, 0]
    assert made({}).others == [None, CONSTANT]


def test_what_is_kept_renewed_and_added():
    graph = made({0: 3, 1: 2, 2: 0})
    assert graph.kept == [(0, 3)] and graph.renewed == [(1, 2)]
    assert [(s.name, output) for s, output in graph.added] == [("c", 0)]


def outputs() -> list[torch.Tensor]:
    found = [on_device(2) * i for i in range(4)]
    sync()
    return found


def test_a_view_after_a_call_has_ids_of_outputs_where_they_are_state():
    graph = made({0: 3, 1: 2, 2: 0})
    graph.layouts = {3: "three", 2: "two", 0: "zero"}
    results = outputs()
    ids = torch_xla_graph.tensor_ids(results)
    before = View([70, 71], [5, 6], ("a", "b"))
    after = graph.view_after(before, results)
    assert after.ids == [ids[3], ids[2], ids[0]]
    # the kept one has its count of changes, what is new has none
    assert after.versions == [5, 0, 0]
    assert after.layouts == ("three", "two", "zero")
    assert before == View([70, 71], [5, 6], ("a", "b"))


def test_what_is_not_updated_stays_as_it_was():
    graph = made({1: 1})
    graph.layouts = {1: "one"}
    results = outputs()
    after = graph.view_after(View([70, 71], [5, 6], ("a", "b")), results)
    assert after.ids == [70, torch_xla_graph.tensor_ids(results)[1]]
    assert after.versions == [5, 0] and after.layouts == ("a", "one")


def test_a_graph_without_outputs():
    graph = made({})
    graph.layouts = {}
    before = View([70, 71], [5, 6], ("a", "b"))
    assert graph.view_after(before, []) == before


def test_versions_and_layouts_are_the_same_objects_until_they_change():
    graph = made({1: 2})
    graph.layouts = {2: "two"}
    first = graph.view_after(View([70, 71], [5, 6], ("a", "b")), outputs())
    second = graph.view_after(first, outputs())
    third = graph.view_after(second, outputs())
    assert second.versions is third.versions and second.layouts is third.layouts
    assert second.ids != third.ids
    written = View(third.ids, [8, 1], third.layouts)
    assert graph.view_after(written, outputs()).versions == [8, 0]
    moved = View(third.ids, written.versions, ("x", "y"))
    assert graph.view_after(moved, outputs()).layouts == ("x", "two")
